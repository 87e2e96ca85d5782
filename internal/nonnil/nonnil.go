// Package nonnil is for methods that may be called on nil.
package nonnil

// Of returns p, or a new zero value for nil: what a method reads of that is zero, too.
func Of[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}
