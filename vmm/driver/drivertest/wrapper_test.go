package drivertest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// Every interface of package driver, and whether a Driver has it or a Device.
var (
	driverInterfaces = map[string]reflect.Type{
		"Driver":        reflect.TypeFor[driver.Driver](),
		"HostViewer":    reflect.TypeFor[driver.HostViewer](),
		"PeerInfo":      reflect.TypeFor[driver.PeerInfo](),
		"RangeExporter": reflect.TypeFor[driver.RangeExporter](),
		"FabricSharer":  reflect.TypeFor[driver.FabricSharer](),
		"FreeReporter":  reflect.TypeFor[driver.FreeReporter](),
		"Wrapper":       reflect.TypeFor[driver.Wrapper](),
	}
	deviceInterfaces = map[string]reflect.Type{
		"Device":        reflect.TypeFor[driver.Device](),
		"Allocator":     reflect.TypeFor[driver.Allocator](),
		"HostAllocator": reflect.TypeFor[driver.HostAllocator](),
		"Grapher":       reflect.TypeFor[driver.Grapher](),
		"StreamMemOps":  reflect.TypeFor[driver.StreamMemOps](),
		"LegacyPeers":   reflect.TypeFor[driver.LegacyPeers](),
		"Copier2D":      reflect.TypeFor[driver.Copier2D](),
		"Launcher":      reflect.TypeFor[driver.Launcher](),

		"StreamPriorities": reflect.TypeFor[driver.StreamPriorities](),
		"Pooler":           reflect.TypeFor[driver.Pooler](),
		"ContextRecorder":  reflect.TypeFor[driver.ContextRecorder](),
		"PeerCopier":       reflect.TypeFor[driver.PeerCopier](),
		"LegacyIPC":        reflect.TypeFor[driver.LegacyIPC](),
		"PoolSharer":       reflect.TypeFor[driver.PoolSharer](),
		"Wrapper":          reflect.TypeFor[driver.Wrapper](),
	}
)

// TestInjectHasEveryInterface: a call of any interface of package driver finds it on
// the wrapper, so no caller has a reason to look further inside.
func TestInjectHasEveryInterface(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	require.NoError(t, err)
	declared := 0
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if _, ok := spec.Type.(*ast.InterfaceType); ok {
				declared++
				require.True(t, driverInterfaces[spec.Name.Name] != nil || deviceInterfaces[spec.Name.Name] != nil,
					"%s is not in this test", spec.Name.Name)
			}
			return true
		})
	}
	require.Equal(t, len(driverInterfaces)+len(deviceInterfaces)-1, declared, "Wrapper is in both")

	d := drivertest.Inject(&bare{}, nil)
	dev, err := d.Open(0)
	require.NoError(t, err)
	for name, i := range driverInterfaces {
		require.True(t, reflect.TypeOf(d).Implements(i), name)
	}
	for name, i := range deviceInterfaces {
		require.True(t, reflect.TypeOf(dev).Implements(i), name)
	}
}

// unreached is a Driver and a Device with no method: a call that reaches it panics.
type unreached struct {
	driver.Driver
	driver.HostViewer
	driver.PeerInfo
	driver.RangeExporter
	driver.FabricSharer
	driver.FreeReporter
}

func (*unreached) Name() string                    { return "unreached" }
func (*unreached) Open(int) (driver.Device, error) { return &unreachedDevice{}, nil }

type unreachedDevice struct {
	driver.Device
	driver.Allocator
	driver.HostAllocator
	driver.Grapher
	driver.StreamMemOps
	driver.LegacyPeers
	driver.Copier2D
	driver.Launcher
	driver.StreamPriorities
	driver.Pooler
	driver.PeerCopier
	driver.LegacyIPC
	driver.PoolSharer
}

func (*unreachedDevice) CopyStream() driver.Stream { return 0 }

// callWithZeros calls a method with zero values, and returns its error too if it has one.
func callWithZeros(f reflect.Value) ([]reflect.Value, error) {
	var args []reflect.Value
	for j := range f.Type().NumIn() {
		if in := f.Type().In(j); in == reflect.TypeFor[*driver.Launch]() {
			args = append(args, reflect.New(in.Elem()))
		} else {
			args = append(args, reflect.Zero(in))
		}
	}
	out := f.Call(args)
	err, _ := out[len(out)-1].Interface().(error)
	return out, err
}

// TestInjectIsNotBypassed calls every method of the wrapper and of a device of it,
// while the hook refuses everything. Not one call reaches what is wrapped, and no
// method returns that.
func TestInjectIsNotBypassed(t *testing.T) {
	refuse, refused := false, 0
	d := drivertest.Inject(&unreached{}, func(drivertest.Call) error {
		if !refuse {
			return nil
		}
		refused++
		return driver.ErrLimit
	})
	dev, err := d.Open(0)
	require.NoError(t, err)
	refuse = true
	// What the hook is not asked about, and what such a method returns.
	unasked := map[string]bool{"Name": true, "CopyStream": true, "Wraps": true, "Counts": true, "Balanced": true}
	for _, wrapper := range []any{d, dev} {
		v := reflect.ValueOf(wrapper)
		for i := range v.NumMethod() {
			name, f := v.Type().Method(i).Name, v.Method(i)
			before := refused
			out, err := callWithZeros(f)
			if unasked[name] {
				require.Equal(t, before, refused, name)
			} else {
				require.Equal(t, before+1, refused, name)
				require.ErrorIs(t, err, driver.ErrLimit, name)
			}
			for _, o := range out {
				require.NotContains(t, fmt.Sprintf("%T", o.Interface()), "unreached", name)
			}
		}
	}
}

// An Identity tells which driver is inside, through several wrappers, and lets no
// call through.
func TestIdentity(t *testing.T) {
	inner, other := &unreached{}, &unreached{}
	outer := drivertest.Inject(drivertest.Inject(inner, nil), nil)
	require.Equal(t, driver.IdentityOf(inner), driver.IdentityOf(outer))
	require.NotEqual(t, driver.IdentityOf(outer), driver.IdentityOf(&struct{ *unreached }{other}))
	require.Equal(t, "*drivertest_test.unreached", driver.IdentityOf(outer).String())
	dev, err := outer.Open(0)
	require.NoError(t, err)
	require.Equal(t, "*drivertest_test.unreachedDevice", driver.IdentityOf(dev).String())

	id := reflect.TypeFor[driver.Identity]()
	require.Equal(t, 1, id.NumMethod(), "String alone")
	for _, f := range reflect.VisibleFields(id) {
		require.False(t, f.IsExported(), f.Name)
	}
}
