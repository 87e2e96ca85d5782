package lending

// Files:
//
//	service.go  Service: frames of members, deadlines, the devices' free memory; reports
//	member.go   members: how they join, come back and end, and what is sent to them
//	self.go     the connection of a member in the process of the Service
//
// Locks: Service.mu, then queue.mu, self.mu. None is held while something is sent or kept.
