//go:build cgo && linux

package cuda

// OnlineNodes is onlineNodes, for the tests.
var OnlineNodes = onlineNodes
