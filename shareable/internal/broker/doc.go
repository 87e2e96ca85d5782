// Package broker has the rules by which a budget of bytes of one device's memory is divided among
// processes, its members. Each member has a lease: the bytes that it may have. A lease is raised by
// a grant, and lowered when the member says so or leaves.
//
// A member asks for a higher lease. Memory that is in no lease is idle, and granted at once. An urgent
// ask waits for more, and goes through these steps:
//
//	waits     demands that were sent                      ends with
//	soft      to others, for what they have in caches     granted, refused above the asker's share, or hard
//	hard      to those over their share, what lacks       granted or refused
//
// Urgent asks are served in their order. Only the first one has hard demands sent, and all that is
// idle is for it. A member that has a hard demand waits for nothing itself: its own ask, which is above
// its share, is refused. So no two members wait for each other.
//
// The share of a member is what it can have whatever others do: its least, and an equal part of the
// rest of the budget, up to what it has or urgently needs.
//
// A grant and the reply to a demand may cross on a connection. Then neither side knows the other's
// lease, and only differences are safe to send: Action.Added one way, and the bytes that were given
// the other way. The caller subtracts those from Broker.Lease for Gave.
//
// A Broker is state alone. It has no lock, no clock and no connection, and may not be used by
// several goroutines at a time. Its methods return what the caller has to send.
package broker

// Files:
//
//	broker.go  Broker and its members: who joins and leaves, their terms, the budget
//	ask.go     asks: which are granted at once, which wait, and the steps of those
//	demand.go  demands: to whom they are sent, and how each ends
//	share.go   what is idle, and the share of each member
//	refuse.go  the errors of refused asks
