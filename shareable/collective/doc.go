// Package collective lets a group of processes, on one host or on many, exchange the
// contents of device memory that grows. NCCL carries the data:
//
//	g, err := collective.Join(ctx, dev, collective.Options{}) // under torchrun, mpirun or srun
//	err = g.Do(ctx, st, collective.AllReduce(sum, grads, collective.Float32, collective.Sum))
//	lengths, err := g.AllGather(ctx, st, all, mine) // each has another length; all grows in place
//	err = g.Sync(ctx, st)
//
// The calls of Do queue work on a stream and return. The memory they use, of a Range, a
// Vector, a View or a block, is not unmapped before they have run.
//
// # What all members have to do
//
// All members make the same calls in the same order, with lengths that match. Those that grow
// memory find out whether all do, and return ErrMismatch everywhere if not. For the calls of
// Do that would cost more than the call: there members that disagree hang, until Options.Timeout,
// or read what nothing wrote.
//
// # Members that are gone
//
// NCCL cannot always tell that a member has died. So each wait has a limit, Options.Timeout,
// and ends earlier with its context. Then the member is out of the group: what it has queued
// ends, its device and its memory are as before, and it can Join another group. The bytes that
// the calls would have written are undefined.
package collective
