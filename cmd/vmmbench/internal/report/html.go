package report

// Piece is a part of a report as a page shows it: a table with its heading, sentences, or
// words with what they mean. One with a heading alone is about the tables that follow.
type Piece struct {
	Heading   string
	HTML      string // the table; what it shows is escaped
	Markdown  string // the same table
	Sentences []string
	Words     []Word
}

// Word is a word of the tables and what it means.
type Word struct{ Word, Means string }

// About is the machine and its devices.
func About(r *Report) []Piece {
	p := document{markdown: true}
	p.about(r)
	return p.pieces
}

// Abilities is what the devices can do, and the limits of the machine.
func Abilities(r *Report) []Piece {
	p := document{markdown: true}
	p.abilities(r)
	return p.pieces
}

// Figures is what was measured: all cases and comparisons, and what their words mean.
func Figures(r *Report) []Piece {
	p := document{markdown: true}
	p.figures(r)
	return p.pieces
}
