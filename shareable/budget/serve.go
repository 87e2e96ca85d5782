package budget

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cuvmm/cuvmm/internal/loglimit"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/lending"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// ServeOptions configures Serve.
type ServeOptions struct {
	// Budgets has one for each device, of one driver.
	Budgets []Budget
	// UIDs, Token and Logger are as in shareable.Options.
	UIDs   []uint32
	Token  []byte
	Logger *slog.Logger
}

// Server is a broker in this process. Safe for concurrent use. The caller must Close it, before the devices.
type Server struct {
	conns   *shareable.Server
	objects serve.Server
	service *lending.Service
}

// Serve makes a broker with a socket at path, which is as for shareable.Listen; "" is that of vmmstored. It returns
// vmm.ErrInvalid without a budget, for two of one device, or for one above what the device has.
//
// If the process ends, the leases stay. A broker that begins waits a second for members of one before it, and grants
// nothing meanwhile.
func Serve(path string, o ServeOptions) (*Server, error) {
	if len(o.Budgets) == 0 {
		return nil, fmt.Errorf("serve budget: %w: there is none", vmm.ErrInvalid)
	}
	o.Logger = loglimit.New(o.Logger)
	var all []lending.Budget
	for _, b := range o.Budgets {
		if b.Device == nil {
			return nil, fmt.Errorf("serve budget: %w: no device", vmm.ErrInvalid)
		}
		all = append(all, lending.Of(b.Device, b.Bytes, b.Free))
	}
	service, err := lending.New(lending.Options{Budgets: all, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("serve budget: %w", err)
	}
	s := &Server{service: service}
	s.conns, s.objects, err = sharing.NewStore(o.Budgets[0].Device, shareable.Options{UIDs: o.UIDs, Token: o.Token, Logger: o.Logger}, handler{s})
	if err == nil {
		err = s.objects.Listen(cmp.Or(path, defaultName))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve budget: %w", err), s.Close())
	}
	return s, nil
}

// Path is the path of the socket.
func (s *Server) Path() string { return s.conns.Path() }

// Reports is the state of the budgets, by device.
func (s *Server) Reports() []Report { return s.service.Reports() }

// Close ends the broker. Members keep what they have. Twice is fine.
func (s *Server) Close() error {
	err := s.conns.Close() // first: a member that does not read is not waited for
	s.service.Close()
	return err
}

// handler is a Server as its connections see it.
type handler struct{ s *Server }

var _ serve.Handler = handler{}

func (h handler) Request(c serve.Conn, f wire.Frame) error {
	var err error
	switch {
	case lending.Handles(f.Type):
		err = h.s.service.Request(c, f)
	case f.Type == wire.TypeReport:
		var b []byte
		all := h.s.Reports()
		if b, err = lending.Marshal(map[string]any{"budgets": all}, all); err == nil {
			return c.Reply(wire.TypeReported, f.Request, wire.Reported{JSON: b}.Append(nil))
		}
	case f.Type == wire.TypeResume: // of a client of a store
		return nil
	default:
		err = fmt.Errorf("%w: this server has a budget, and no store", vmm.ErrNotSupported)
	}
	var broke *wire.ProtocolError
	if err == nil || errors.As(err, &broke) {
		return err
	}
	return c.Refuse(f.Request, err)
}

func (h handler) End(c serve.Conn)         { h.s.service.End(c) }
func (h handler) Idle(c serve.Conn) bool   { return !h.s.service.IsMember(c) }
func (h handler) Find(string) serve.Object { return nil }
func (h handler) Readers(serve.Object)     {}
