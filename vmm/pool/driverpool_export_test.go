package pool

// PoolOf is poolOf.
var PoolOf = poolOf
