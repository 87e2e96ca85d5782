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
// Each call, also one that Do has queued and returned from, ends within Options.Timeout from when
// its turn on the stream comes; each wait of a call ends with its context, too. Members that met by
// the environment keep a connection, and learn at once of one that has ended. Then the group is
// aborted in this process: what it has queued ends, and all its calls return why, until Close. The
// device and its memory are as before, but for the bytes that calls would have written which had
// not run: Group.Unwritten lists them. Until Close, Abort or Shrink, Stream.Sync and Stream.Done of
// their streams return the error, and so do reads that wait for those streams: without UsedBy, of all
// ranges of the device. Group.Shrink makes a group of the members that live.
package collective

// Files:
//
//	options.go      Options and defaults, also Timeout, the deadline of calls; kinds, reductions
//	errors.go       the errors
//	join.go         NewID and Join
//	overrides.go    settings of NCCL that Join refuses
//	environment.go  FromEnvironment
//	secret.go       the secret, and how a member proves that it has it
//	link.go         connections on which that was proved, and their frames
//	meet.go         how the members meet, and how a host that is silent is noticed (TCP keepalive)
//	circle.go       the connections that stay: who has ended, how long others get to say so
//	shrink.go       how the members that live agree on who continues
//	survivors.go    Group.Shrink; which member an error is about
//	group.go        Group: Do, Sync, Close, Abort
//	waits.go        the calls that are queued or waited for: the timer that ends them, what an abort marks
//	op.go           Memory and the operations of Do, and their checks
//	grow.go         the calls that grow memory
//	rebalance.go    Rebalance
//	words.go        exchanging words between all members
//	register.go     Register: chunks as they come and go; windows
//	nccl.go         NCCL as an engine
