package lending

// Files:
//
//	service.go  Service: frames of members, deadlines, the devices' free memory; reports
//	member.go   members: how they join, come back and end, and what is sent to them
//
// Locks: Service.mu, then queue.mu. Neither is held while something is sent or kept.
