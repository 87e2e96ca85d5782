package report

// Floor is a rate that a case had to reach, by --at-least, in GB/s.
type Floor struct {
	Case  string   `json:"case"`
	Least float64  `json:"least"`
	Value *float64 `json:"value"` // the case's median; null if it did not pass
}

// Missed reports whether the case is slower, or has no figure.
func (f Floor) Missed() bool { return f.Value == nil || *f.Value < f.Least }

// floors is the table of what had to be reached.
func floors(r *Report) []Piece {
	g := newGrid("case with a floor")
	for _, f := range r.Run.AtLeast {
		g.setRow(f.Case, f, "least", "value")
		g.set(f.Case, "result", map[bool]string{true: "below its floor", false: "reached"}[f.Missed()])
	}
	return g.pieces("Floors, GB/s")
}
