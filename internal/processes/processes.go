// Package processes tells which process this is, and whether another one has ended. What cannot
// be looked at, for want of a descriptor or of /proc, has not ended, and is asked again next time.
package processes

import "sync/atomic"

// ID names a process for others on the same machine, until it starts anew.
type ID struct {
	PID       int
	Start     uint64 // in the system's clock ticks since it started; 0: not known. A pid is used again
	Namespace uint64 // the pid namespace, in which PID counts; 0 where there are none
}

// Known keeps what is the same as long as the process runs. Its zero value knows nothing. Safe for
// concurrent use.
type Known[T any] struct{ value atomic.Pointer[T] }

// Get is what ask has returned, once, without an error. An error is not kept, and comes with what
// ask returned beside it.
func (k *Known[T]) Get(ask func() (T, error)) (T, error) {
	if v := k.value.Load(); v != nil {
		return *v, nil
	}
	v, err := ask()
	if err == nil {
		k.value.Store(&v)
	}
	return v, err
}
