// Package collective lets a group of processes, on one host or on many, exchange the
// contents of device memory that grows. NCCL carries the data:
//
//	g, err := collective.Join(ctx, dev, collective.Options{}) // under torchrun, mpirun or srun
//	err = g.Do(ctx, st, collective.AllReduce(sum, grads, collective.Float32, collective.Sum))
//	lengths, err := g.AllGather(ctx, st, all, mine) // lengths may differ; all grows in place
//	err = g.Sync(ctx, st)
//
// The calls of Do queue work on a stream and return. The memory they use, of a Range, a
// Vector, a View or a block, stays mapped until they have run. All lengths are bytes.
//
// # What all members have to do
//
// All members make the same calls in the same order, with lengths that match. The calls that
// grow memory check that, and return ErrMismatch on all members if it is not so. Do does not,
// because checking would cost more than the call: members that disagree there wait until
// Options.Timeout, or receive bytes that no member sent.
//
// # Members that are gone
//
// NCCL cannot always tell that a member has died. So each wait ends after Options.Timeout, or
// with its context. Then the group is aborted in this process: what it has queued ends, the
// device and its memory are as before, and the process can Join another group. The bytes that
// the calls would have written are undefined.
package collective
