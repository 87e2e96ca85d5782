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
	// The first line of ndjson is a whole object without cases. That of JSON has cases, or
	// is a part of an object.
	first, rest, _ := bytes.Cut(bytes.TrimLeft(text, " \t\r\n"), []byte("\n"))
	var header struct {
		Schema json.RawMessage `json:"schema"`
		Cases  json.RawMessage `json:"cases"`
	}
	var got *Report
	if json.Unmarshal(first, &header) == nil && header.Schema != nil && header.Cases == nil {
		got, err = readLines(first, rest)
	} else {
		got, err = readObject(text)
	}
	if err == nil {
		err = got.complete()
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// readObject reads a report that is one object.
func readObject(text []byte) (*Report, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("not a report: it is empty")
	}
	// The schema comes first: a report of another one may have other types.
	if err := checkSchema(text); err != nil {
		return nil, err
	}
	got := New(Run{}, Host{})
	if err := json.Unmarshal(text, got); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return got, nil
}

// checkSchema refuses what is not a report, and reports of another schema.
func checkSchema(text []byte) error {
	var header struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(text, &header); err != nil {
		return fmt.Errorf("not a report, or one that is cut off: %w", err)
	}
	switch {
	case header.Schema == nil:
		return errors.New("not a report: it has no schema")
	case *header.Schema != Schema:
		return fmt.Errorf("a report of schema %q; this program reads %q", *header.Schema, Schema)
	}
	return nil
}

// readLines reads ndjson. first is its first line, rest the other lines.
func readLines(first, rest []byte) (*Report, error) {
	if err := checkSchema(first); err != nil {
		return nil, err
	}
	got, ended := New(Run{}, Host{}), false
	for n, line := 1, first; ; n++ {
		// Each line has one of these. A line of another kind is a new field.
		var one struct {
			Run        *Run        `json:"run"`
			Host       *Host       `json:"host"`
			Device     *Device     `json:"device"`
			Case       *Case       `json:"case"`
			Comparison *Comparison `json:"comparison"`
			Baseline   *Baseline   `json:"baseline"`
			End        *Run        `json:"end"`
		}
		if err := json.Unmarshal(line, &one); err != nil && len(bytes.TrimSpace(line)) > 0 {
			if len(rest) == 0 && !json.Valid(line) {
				break // cut off
			}
			return nil, fmt.Errorf("report, line %d: %w", n, err)
		}
		switch {
		case one.Run != nil:
			got.Run = *one.Run
		case one.Host != nil:
			got.Host = *one.Host
		case one.Device != nil:
			// The end has each device once more, with its state then.
			same := func(d Device) bool { return d.Open == one.Device.Open }
			if i := slices.IndexFunc(got.Devices, same); i >= 0 {
				got.Devices[i] = *one.Device
			} else {
				got.Devices = append(got.Devices, *one.Device)
			}
		case one.Case != nil:
			got.Cases = append(got.Cases, *one.Case)
		case one.Comparison != nil:
			got.Comparisons = append(got.Comparisons, *one.Comparison)
		case one.Baseline != nil:
			got.Baseline = one.Baseline
		case one.End != nil:
			got.Run, ended = *one.End, true
		}
		if len(rest) == 0 {
			break
		}
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
	}
	got.Run.Interrupted = got.Run.Interrupted || !ended
	return got, nil
}

// complete checks what the other formats rely on, and puts empty lists where there are
// none.
func (r *Report) complete() error {
	r.Run.Args = notNil(r.Run.Args)
	r.Host.Limits = notNil(r.Host.Limits)
	r.Devices, r.Cases, r.Comparisons = notNil(r.Devices), notNil(r.Cases), notNil(r.Comparisons)
	for i := range r.Devices {
		d := &r.Devices[i]
		d.Peers, d.Features = notNil(d.Peers), notNil(d.Features)
	}
	if b := r.Baseline; b != nil {
		if b.New != nil {
			b.New.Args = notNil(b.New.Args)
		}
		b.Run.Args, b.Host.Limits = notNil(b.Run.Args), notNil(b.Host.Limits)
		b.Devices, b.OnlyOld, b.OnlyNew = notNil(b.Devices), notNil(b.OnlyOld), notNil(b.OnlyNew)
	}
	if r.Run.Measure != nil {
		if err := checkMargin(r.Run.Measure.Margin); err != nil {
			return fmt.Errorf("report: run: %w", err)
		}
	}
	for i := range r.Cases {
		c := &r.Cases[i]
		if err := c.check(); err != nil {
			return fmt.Errorf("report: case %s: %w", cmp.Or(c.ID, strconv.Itoa(i)), err)
		}
		c.Axes, c.Samples, c.Flags = notNil(c.Axes), notNil(c.Samples), notNil(c.Flags)
	}
	for _, c := range r.Comparisons {
		if err := c.check(); err != nil {
			return fmt.Errorf("report: comparison %s: %w", c.ID, err)
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
