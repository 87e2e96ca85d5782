package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// Read reads a report that was written as JSON or as ndjson; it looks at the content
// to tell which. Fields that it does not know are ignored, as Schema promises. Axes that
// are whole numbers become uint64.
//
// Of ndjson, what a killed run has left is enough: a last line that is cut off is dropped,
// and a report without its end is marked interrupted. Anything else that cannot be
// understood is an error, and so is a report of another schema.
func Read(r io.Reader) (*Report, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var first json.RawMessage
	var header struct {
		Schema *string         `json:"schema"`
		Cases  json.RawMessage `json:"cases"`
	}
	err = json.NewDecoder(bytes.NewReader(text)).Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, errors.New("not a report: it is empty")
	}
	// The schema comes first: a report of another one may have other types.
	switch err = cmp.Or(err, json.Unmarshal(first, &header)); {
	case err != nil:
		return nil, fmt.Errorf("not a report, or one that is cut off: %w", err)
	case header.Schema == nil:
		return nil, errors.New("not a report: it has no schema")
	case *header.Schema != Schema:
		return nil, fmt.Errorf("a report of schema %q; this program reads %q", *header.Schema, Schema)
	}
	got := New(Run{}, Host{})
	if header.Cases == nil {
		err = got.readLines(text)
	} else {
		err = json.Unmarshal(text, got)
	}
	if err = cmp.Or(err, got.complete()); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return got, nil
}

// readLines reads ndjson.
func (r *Report) readLines(text []byte) error {
	ended, list := false, bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	for i, text := range list {
		var one line // one of another kind is a new field
		if err := json.Unmarshal(text, &one); err != nil && len(bytes.TrimSpace(text)) > 0 {
			if i == len(list)-1 && !json.Valid(text) {
				break // cut off
			}
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		r.addLine(one)
		ended = ended || one.End != nil
	}
	r.Run.Interrupted = r.Run.Interrupted || !ended
	return nil
}

// addLine adds what a line has. The end has each device once more, with its state then.
func (r *Report) addLine(one line) {
	switch {
	case one.Run != nil:
		r.Run = *one.Run
	case one.Host != nil:
		r.Host = *one.Host
	case one.Device != nil:
		r.Devices = without(r.Devices, func(d Device) bool { return d.Open == one.Device.Open })
		r.Devices = append(r.Devices, *one.Device)
	case one.Topology != nil:
		r.Topology = one.Topology
	case one.Case != nil:
		r.Cases = append(r.Cases, *one.Case)
	case one.Comparison != nil:
		r.Comparisons = append(r.Comparisons, *one.Comparison)
	case one.Baseline != nil:
		r.Baseline = one.Baseline
	case one.End != nil:
		r.Run = *one.End
	}
}

// complete checks what the other formats rely on, and puts empty lists where a case has none.
func (r *Report) complete() error {
	for i := range r.Cases {
		c := &r.Cases[i]
		if err := c.check(); err != nil {
			return fmt.Errorf("case %s: %w", cmp.Or(c.ID, strconv.Itoa(i)), err)
		}
		c.Axes, c.Samples, c.Flags = notNil(c.Axes), notNil(c.Samples), notNil(c.Flags)
	}
	for _, c := range r.Comparisons {
		if err := c.check(); err != nil {
			return fmt.Errorf("comparison %s: %w", c.ID, err)
		}
	}
	return nil
}

// notNil returns the list, an empty one instead of nil.
func notNil[L ~[]E, E any](list L) L {
	if list == nil {
		return L{}
	}
	return list
}

// check refuses a case that no run can have measured. The schema in the documentation has more.
func (c *Case) check() error {
	switch {
	case c.ID == "":
		return errors.New("it has no id")
	case !slices.Contains(statuses, c.Status):
		return fmt.Errorf("status %q is none of %v", c.Status, statuses)
	case c.Stats != nil && len(c.Samples) > 0 && c.Stats.N != len(c.Samples):
		return fmt.Errorf("%d samples by its statistics, %d in its list", c.Stats.N, len(c.Samples))
	}
	return nil
}

// check refuses a comparison that no run can have made.
func (c *Comparison) check() error {
	switch {
	case !slices.Contains(stat.Verdicts(), c.Verdict):
		return fmt.Errorf("verdict %q is none of %v", c.Verdict, stat.Verdicts())
	case c.Verdict.Firm() && (c.Ratio == nil || c.Low == nil || c.High == nil):
		return fmt.Errorf("it is %s without an interval", c.Verdict)
	}
	return nil
}
