package collectivetest

// JoinOn is for the tests of the package.
var JoinOn = forTests.JoinOn
