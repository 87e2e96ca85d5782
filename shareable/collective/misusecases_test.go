package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

type act = func(m *misuseMember) error

// Acts of a member.
func adds(m *misuseMember) error        { return m.run(AllReduce(m.fixed, m.fixed, Uint8, Sum)) }
func gathers(m *misuseMember) error     { return m.gatherAll(m.dst, m.src) }
func comesNot(*misuseMember) error      { return nil }
func closes(m *misuseMember) error      { m.afterOthers(); return m.Close() }
func aborts(m *misuseMember) error      { m.afterOthers(); return m.Abort() }
func addsLate(m *misuseMember) error    { m.afterOthers(); return adds(m) }
func gathersLate(m *misuseMember) error { m.afterOthers(); return gathers(m) }
func runs(op func(m *misuseMember) Op) act {
	return func(m *misuseMember) error { return m.run(op(m)) }
}

// reduces is an act: one operation on n bytes of the fixed memory.
func reduces(n uint64, k Kind, r Reduction) act {
	return runs(func(m *misuseMember) Op { return AllReduce(Part(m.fixed, 0, n), Part(m.fixed, 0, n), k, r) })
}

func roots(root int) act {
	return runs(func(m *misuseMember) Op { return Reduce(root, m.fixed, m.fixed, Uint8, Sum) })
}

func sends(to int, n uint64) act {
	return runs(func(m *misuseMember) Op { return Send(Part(m.fixed, 0, n), to) })
}

func receives(from int, n uint64) act {
	return runs(func(m *misuseMember) Op { return Recv(Part(m.fixed, 0, n), from) })
}

func gathersAt(root int) act {
	return func(m *misuseMember) error {
		return m.grow(func() error {
			lengths, err := m.Gather(m.ctx, m.st, root, m.dst, m.src)
			want := make([]uint64, len(m.all))
			if m.rank == root {
				want = slices.Repeat([]uint64{misuseBytes}, len(m.all))
			}
			if err == nil && !slices.Equal(lengths, want) {
				err = fmt.Errorf("lengths %v, not %v", lengths, want)
			}
			return err
		})
	}
}

func scattersFrom(root int) act {
	return func(m *misuseMember) error {
		return m.grow(func() error {
			_, err := m.Scatter(m.ctx, m.st, root, m.dst, m.src, slices.Repeat([]uint64{misuseBytes / uint64(len(m.all))}, len(m.all)))
			return err
		})
	}
}

func exchanges(counts ...uint64) act {
	return func(m *misuseMember) error {
		return m.grow(func() error { _, err := m.Exchange(m.ctx, m.st, m.dst, m.src, counts); return err })
	}
}

func appendsFrom(root int) act {
	return func(m *misuseMember) error {
		return m.grow(func() error { _, err := m.AppendFrom(m.ctx, m.st, root, m.dst, m.src); return err })
	}
}

func gathersVector[T ~int32 | ~float32](m *misuseMember) (err error) {
	v, err := growable.New[T](m.Device(), growable.Options{MaxLen: 1000})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if err := v.Append(1, 2, 3); err != nil {
		return err
	}
	err = m.gatherAll(v, v)
	if v.Len() != 3 {
		err = errors.Join(err, fmt.Errorf("%d elements", v.Len()))
	}
	return err
}

// addsOther reduces elements of another kind than those that the memory has.
func addsOther(m *misuseMember) (err error) {
	v, err := growable.New[float32](m.Device(), growable.Options{MaxLen: 1000})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if err := v.Append(1, 2, 3); err != nil {
		return err
	}
	return m.run(AllReduce(v, v, Int32, Sum))
}

// ended makes a call with a context that has ended.
func ended(call act) act {
	return func(m *misuseMember) error {
		ctx, cancel := context.WithCancel(m.ctx)
		cancel()
		with := *m
		with.ctx = ctx
		return call(&with)
	}
}

// ending makes a call with a context that ends while it waits.
func ending(call act) act {
	return func(m *misuseMember) error {
		ctx, cancel := context.WithCancel(m.ctx)
		defer cancel()
		go func() {
			m.untilWaiting(1)
			cancel()
		}()
		with := *m
		with.ctx = ctx
		return call(&with)
	}
}

// interrupted makes a call during which another goroutine of the member ends the group.
func interrupted(call act, end func(*Group) error) act {
	return func(m *misuseMember) error {
		done := begun(func() error {
			m.untilWaiting(1)
			return end(m.Group)
		})
		return errors.Join(call(m), <-done)
	}
}

// then makes two calls, one after the other. The first must get want; if that is nil, its error is
// the act's.
func then(first act, want error, next act) act {
	return func(m *misuseMember) error {
		switch err := first(m); {
		case want == nil && err != nil:
			return err
		case !errors.Is(err, want):
			return fmt.Errorf("%w, not %w", err, want)
		}
		return next(m)
	}
}

// each is the same of n members.
func each[T any](n int, x T) []T { return slices.Repeat([]T{x}, n) }

func misuses() map[string]misuse {
	all := map[string]misuse{
		// Members that make different calls of Do. The third one learns of it.
		"Do, other operations":   {mismatch: true, do: []act{adds, roots(0), adds}, want: each(3, ErrFailed), texts: []string{"AllReduce of 64 uint8 (sum)", "Reduce of 64 uint8 (sum) with root 0"}},
		"Do, other kinds":        {mismatch: true, do: []act{reduces(8, Float32, Sum), reduces(8, Int32, Sum)}, want: each(2, ErrFailed), texts: []string{"of 2 float32", "of 2 int32", "rank 0", "rank 1"}},
		"Do, other counts":       {mismatch: true, do: []act{reduces(8, Uint8, Sum), reduces(9, Uint8, Sum)}, want: each(2, ErrFailed), texts: []string{"of 8 uint8", "of 9 uint8"}},
		"Do, other reductions":   {mismatch: true, do: []act{reduces(8, Uint8, Sum), reduces(8, Uint8, Max)}, want: each(2, ErrFailed), texts: []string{"(sum)", "(max)"}},
		"Do, other roots":        {mismatch: true, do: []act{roots(0), roots(1)}, want: each(2, ErrFailed), texts: []string{"root 0", "root 1"}},
		"Do, other lengths":      {mismatch: true, do: []act{sends(1, 4), receives(0, 5)}, want: each(2, ErrFailed), texts: []string{"Send of 4 uint8 to 1", "Recv of 5 uint8 from 0"}},
		"Do, a message and all":  {mismatch: true, do: []act{sends(1, 4), adds}, want: each(2, ErrFailed), texts: []string{"Send of 4 uint8 to 1", "AllReduce of 64 uint8 (sum)"}},
		"Do, two that send":      {mismatch: true, do: []act{sends(1, 4), sends(0, 4)}, want: each(2, ErrFailed), texts: []string{"to 1", "to 0"}},
		"Do, three in a circle":  {mismatch: true, do: []act{sends(1, 4), sends(2, 4), sends(0, 4), adds}, want: each(4, ErrFailed), texts: []string{"which waits in"}},
		"a call that grows, Do":  {mismatch: true, do: []act{gathers, adds}, want: each(2, ErrFailed), texts: []string{"AllGather", "AllReduce"}},
		"Do and two that gather": {mismatch: true, do: []act{gathers, gathers, adds}, want: each(3, ErrFailed)},

		// Those of calls that grow are seen on all engines.
		"other calls that grow":   {goesOn: true, do: []act{gathersAt(0), scattersFrom(0)}, want: each(2, ErrMismatch)},
		"other roots":             {goesOn: true, do: []act{gathersAt(0), gathersAt(1), gathersAt(0)}, want: each(3, ErrMismatch)},
		"other roots to append":   {goesOn: true, do: []act{appendsFrom(0), appendsFrom(1)}, want: each(2, ErrMismatch)},
		"other elements":          {goesOn: true, do: []act{gathersVector[int32], gathersVector[float32]}, want: each(2, ErrMismatch)},
		"late to all of them":     {goesOn: true, do: []act{gathers, gathers, gathersLate}, want: each[error](3, nil)},
		"no such root":            {goesOn: true, do: []act{gathersAt(2), gathersAt(2)}, want: each(2, vmm.ErrInvalid)},
		"a root of one member":    {goesOn: true, do: []act{gathersAt(7), gathersAt(0)}, want: each(2, ErrMismatch)},
		"gather at one":           {goesOn: true, do: []act{gathersAt(1), gathersAt(1), gathersAt(1)}, want: each[error](3, nil)},
		"elements of other kinds": {goesOn: true, do: []act{addsOther, addsOther}, want: each(2, vmm.ErrInvalid)},

		// Arguments that cannot be used.
		"dst is full": {goesOn: true, do: []act{gathers, func(m *misuseMember) error { return m.gatherAll(m.full, m.src) }}, want: []error{ErrPeerFailed, vmm.ErrFull}},
		"dst of the root is full": {goesOn: true, want: []error{ErrPeerFailed, vmm.ErrFull, ErrPeerFailed}, do: each(3, func(m *misuseMember) error {
			_, err := m.Gather(m.ctx, m.st, 1, m.full, m.src)
			return err
		})},
		"counts that overflow":     {goesOn: true, do: []act{exchanges(math.MaxUint64, misuseBytes+1), exchanges(32, 32)}, want: []error{vmm.ErrInvalid, ErrPeerFailed}},
		"counts of too much":       {goesOn: true, do: []act{exchanges(32, 33), exchanges(32, 32)}, want: []error{vmm.ErrInvalid, ErrPeerFailed}},
		"counts for three":         {goesOn: true, do: []act{exchanges(32, 16, 16), exchanges(32, 32)}, want: []error{vmm.ErrInvalid, ErrPeerFailed}},
		"counts that were agreed":  {goesOn: true, do: []act{exchanges(1, 63), exchanges(64, 0)}, want: each[error](2, nil)},
		"a part beyond the end":    {goesOn: true, do: each(2, reduces(misuseBytes+1, Uint8, Sum)), want: each(2, vmm.ErrBounds)},
		"a part beyond all memory": {goesOn: true, do: each(2, reduces(math.MaxUint64, Uint8, Sum)), want: each(2, vmm.ErrBounds)},
		"no such member":           {goesOn: true, do: each(2, sends(2, 1)), want: each(2, vmm.ErrInvalid)},

		// Contexts, and members that come late or not.
		"a context that has ended":  {goesOn: true, do: []act{then(ended(adds), context.Canceled, adds), adds}, want: each[error](2, nil)},
		"and in a call that grows":  {goesOn: true, do: []act{then(ended(gathers), context.Canceled, gathers), gathers}, want: each[error](2, nil)},
		"a context that ends":       {do: []act{ending(adds), comesNot}, want: []error{context.Canceled, nil}},
		"and while it grows":        {do: []act{ending(gathers), comesNot}, want: []error{context.Canceled, nil}},
		"a late member":             {goesOn: true, do: []act{adds, adds, addsLate}, want: each[error](3, nil)},
		"late to a call that grows": {goesOn: true, do: []act{gathers, gathersLate}, want: each[error](2, nil)},
		"a member does not come":    {do: []act{adds, comesNot}, want: []error{os.ErrDeadlineExceeded, nil}},
		"nor to a call that grows":  {do: []act{gathers, comesNot}, want: []error{os.ErrDeadlineExceeded, nil}},

		// Members that end while others wait for them, or while they wait themselves.
		"one aborts":              {do: []act{aborts, adds}, want: []error{nil, errEnded}},
		"one aborts, two sum":     {do: []act{aborts, adds, adds}, want: []error{nil, errEnded, errEnded}},
		"one aborts, one gathers": {do: []act{aborts, gathers}, want: []error{nil, errEnded}},
		"one closes":              {do: []act{closes, adds}, want: []error{errAny, errEnded}},
		"one closes, one gathers": {do: []act{closes, gathers}, want: []error{errAny, errEnded}},
		"Abort of what sums":      {do: []act{interrupted(adds, (*Group).Abort), comesNot}, want: []error{ErrAborted, nil}},
		"Abort of what gathers":   {do: []act{interrupted(gathers, (*Group).Abort), comesNot}, want: []error{ErrAborted, nil}},
		"Close of what adds":      {do: []act{interrupted(adds, (*Group).Close), comesNot}, want: []error{os.ErrDeadlineExceeded, nil}},
		"Close of what gathers":   {do: []act{interrupted(gathers, (*Group).Close), comesNot}, want: []error{os.ErrDeadlineExceeded, nil}},
		"Do and one that dies":    {dies: 1, do: each(2, adds), want: []error{ErrPeerGone, ErrAborted}},
		"two and one that dies":   {dies: 1, do: each(3, adds), want: []error{ErrPeerGone, ErrAborted, ErrPeerGone}},
		"messages, and one dies":  {dies: 1, do: []act{receives(1, 4), sends(0, 4)}, want: []error{ErrPeerGone, ErrAborted}},
		"dies after a call of Do": {dies: 2, do: each(2, then(adds, nil, adds)), want: []error{ErrPeerGone, ErrAborted}},
	}
	// Every step of a call that grows: the lengths, whether all have the memory, the bytes.
	for name, call := range map[string]act{
		"AllGather": gathers, "Gather": gathersAt(0), "Scatter": scattersFrom(1), "Exchange": exchanges(32, 32), "AppendFrom": appendsFrom(1),
	} {
		for step := int32(1); step <= 3; step++ {
			all[fmt.Sprintf("%s and one that dies at step %d", name, step)] = misuse{dies: step, do: each(2, call), want: []error{ErrPeerGone, ErrAborted}}
		}
	}
	return all
}
