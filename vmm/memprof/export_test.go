package memprof

// Since is what has changed since a profile was taken.
var Since = since
