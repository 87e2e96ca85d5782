package kernel

// PTXParams is ptxParams.
var PTXParams = ptxParams

// SetNoCapacityCheck turns off the check of room for what Go functions append: the negative
// control of the test that it is needed.
func SetNoCapacityCheck(off bool) { noCapacityCheck = off }
