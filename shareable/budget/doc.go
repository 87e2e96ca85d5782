// Package budget divides the memory of a device among processes, while they run. Each process that joins is a member.
// It has a lease: so many bytes it may create. When it needs more, it gets what no one uses, or what another process
// has beyond its share and can give back. Nothing is copied, no address changes, and no process is killed.
//
//	m, err := budget.Join(ctx, "", dev, budget.JoinOptions{Name: "chat", Least: 8 << 30})
//	defer m.Close()
//	defer dev.OnPressure(func(error) bool { return cache.DropOldest() })()
//
// From then on the lease bounds what the process creates on dev, beside vmm.Device.SetLimit, which is the most that
// it may have. Growth asks for more by itself. When another member needs memory, the functions of
// vmm.Device.OnPressure are called, as when this process runs out.
//
// # Who gets what
//
// The shares are equal, beyond what each member is promised: JoinOptions.Least, which is never taken. A member that
// needs less than its share leaves the rest to the others. An operation that its lease is too short for asks, in this
// order, until it has enough:
//
//  1. memory that is cached and unused in its process;
//  2. memory of the budget that no member has, or that other members have and do not use;
//  3. the functions of OnPressure of its own device;
//  4. members that hold more than their share, if it holds less: these call their functions of OnPressure.
//
// If that is not enough, the operation returns vmm.ErrOutOfMemory, whose text names the members that gave too little
// or did not answer.
//
// # The broker
//
// vmmstored is the broker, with --budget, or one of the programs is, with [Serve]. A member that ends gives all back,
// however it ends. While no broker runs, the leases stay, and growth goes on within them.
//
// A budget bounds its members alone. Memory that others on the device have is not given away, as far as the broker can
// see it.
//
// # Limits of the system
//
// [Follow] has a process obey limits that its control groups, MPS or HAMi set, with a broker or without one.
package budget

// Files:
//
//	budget.go  Budget, Report; asking a broker and changing terms
//	serve.go   Serve: a broker in a program
//	join.go    Join and Member: the connection to the broker, and when it connects again
//	lender.go  asking for a higher lease, and giving
//	follow.go  Follow: a bound by the system's limits, and giving when one is near
//	limits.go  Limits: reading control groups and environment variables
//
// Locks: Member.mu, then those of package vmm, and of a broker in this process. It is held while a frame is sent.
