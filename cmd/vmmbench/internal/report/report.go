package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// Schema is the version of Report. A new field needs no new version, a field
// whose meaning changes does.
const Schema = "vmmbench/1"

// Report is a whole run.
type Report struct {
	Schema      string       `json:"schema"`
	Run         Run          `json:"run"`
	Host        Host         `json:"host"`
	Devices     []Device     `json:"devices"`
	Topology    []Link       `json:"topology,omitempty"` // of info
	Cases       []Case       `json:"cases"`
	Comparisons []Comparison `json:"comparisons"`
	Baseline    *Baseline    `json:"baseline,omitempty"` // if there is one
}

// New is a Report without devices, cases and comparisons.
func New(run Run, host Host) *Report {
	return &Report{
		Schema: Schema, Run: run, Host: host,
		Devices: []Device{}, Cases: []Case{}, Comparisons: []Comparison{},
	}
}

// Text is a string that is null where it is empty.
type Text string

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(t))
}

// Run says how the numbers were made. Measure is nil if nothing was measured.
type Run struct {
	Command     string   `json:"command"`
	Args        []string `json:"args"`
	Version     Text     `json:"version"` // of vmmbench, with the commit where it is known
	Started     string   `json:"started"` // RFC 3339
	Seconds     float64  `json:"seconds"`
	Interrupted bool     `json:"interrupted"`
	Error       Text     `json:"error"` // of the run itself, not of a case
	Measure     *Measure `json:"measure"`
	AtLeast     []Floor  `json:"at_least,omitempty"` // what --at-least has found
}

// Measure is the part of Run that has to do with timing.
type Measure struct {
	Seed    uint64      `json:"seed"`
	Samples int         `json:"samples"`
	MinTime float64     `json:"min_time_ns"`
	MaxTime float64     `json:"max_time_ns"`
	Order   string      `json:"order"`
	Verify  verify.Mode `json:"verify"`
	Margin  float64     `json:"margin"`
}

// Host is the machine. Memory is in bytes.
type Host struct {
	OS     string  `json:"os"`
	Kernel Text    `json:"kernel"`
	Arch   string  `json:"arch"`
	CPU    Text    `json:"cpu"`
	CPUs   int     `json:"cpus"`
	Memory *uint64 `json:"memory"`
	Go     string  `json:"go"`
	Limits []Limit `json:"limits"`

	State    *HostState `json:"state"`     // when the run started
	StateEnd *HostState `json:"state_end"` // when it ended; null if nothing was measured
}

// Limit is what the system allows this process. Value is nil where there is no
// limit or it cannot be read; Reason says which.
type Limit struct {
	Name   string  `json:"name"`
	Value  *uint64 `json:"value"`
	Reason Text    `json:"reason"`
}

// Device is one device and what it can do.
type Device struct {
	Open        string    `json:"open"`
	Name        string    `json:"name"`
	Driver      Text      `json:"driver"`
	UUID        Text      `json:"uuid"`
	PCI         Text      `json:"pci"`
	MIG         Text      `json:"mig"`
	Arch        Text      `json:"arch"`
	Compute     Text      `json:"compute_mode"`
	Cache       *uint64   `json:"cache"`              // bytes of its largest cache
	Unified     bool      `json:"unified_addressing"` // the host and the device share one address space
	Memory      uint64    `json:"memory"`
	Free        *uint64   `json:"free"`
	Granularity *uint64   `json:"granularity"`
	Recommended *uint64   `json:"granularity_recommended"`
	Peers       []string  `json:"peers"`
	Features    []Feature `json:"features"`
	Reason      Text      `json:"reason"` // why something above is null

	State    *DeviceState `json:"state"`     // when the run started; null for memory of the host, whose state is Host's
	StateEnd *DeviceState `json:"state_end"` // when it ended; null if nothing was measured
}

// Feature is the result of a probe: true, false, or null with a reason if the
// probe did not find out.
type Feature struct {
	Name      string `json:"name"`
	Supported *bool  `json:"supported"`
	Reason    Text   `json:"reason"`
}

// Status says how a case ended.
type Status string

// The values of Status. Failed means that the data were wrong, Error that the
// work could not be done, Waived that this machine does not support it.
const (
	Passed      Status = "passed"
	Failed      Status = "failed"
	Waived      Status = "waived"
	Error       Status = "error"
	Interrupted Status = "interrupted"
)

// statuses are all of them.
var statuses = []Status{Passed, Failed, Waived, Error, Interrupted}

// Axis is a parameter in which cases differ. Value is a string or a number.
type Axis struct {
	Name  string
	Value any
}

// byteAxes are the axes whose numbers are bytes; those of others are counts.
var byteAxes = []string{"size", "step", "chunk", "threshold"}

// String returns the value as it is printed: bytes in binary units, a dash for none.
func (a Axis) String() string {
	switch v := a.Value.(type) {
	case nil:
		return "-"
	case uint64:
		if slices.Contains(byteAxes, a.Name) {
			return size.Format(v)
		}
	}
	return fmt.Sprint(a.Value)
}

// Axes are a JSON object that keeps its order.
type Axes []Axis

// MarshalJSON implements json.Marshaler.
func (a Axes) MarshalJSON() ([]byte, error) {
	parts := make([][]byte, len(a))
	for i, x := range a {
		object, err := json.Marshal(map[string]any{x.Name: x.Value})
		if err != nil {
			return nil, err
		}
		parts[i] = object[1 : len(object)-1]
	}
	return slices.Concat([]byte("{"), bytes.Join(parts, []byte(",")), []byte("}")), nil
}

// UnmarshalJSON implements json.Unmarshaler. A whole number becomes a uint64, as sizes
// are.
func (a *Axes) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, fmt.Errorf("axes are %v instead of an object", t))
	}
	*a = Axes{}
	for d.More() {
		name, wrong := d.Token()
		value, err := d.Token()
		switch v := value.(type) {
		case json.Delim:
			err = fmt.Errorf("axis %v is no plain value", name)
		case json.Number:
			if value, err = strconv.ParseUint(string(v), 10, 64); err != nil {
				value, err = v.Float64()
			}
		}
		if err := cmp.Or(wrong, err); err != nil {
			return err
		}
		*a = append(*a, Axis{fmt.Sprint(name), value})
	}
	return nil
}

// Of returns the value of the axis called name, nil if there is none.
func (a Axes) Of(name string) any {
	for _, x := range a {
		if x.Name == name {
			return x.Value
		}
	}
	return nil
}

// text prints the value of the axis called name.
func (a Axes) text(name string) string { return Axis{name, a.Of(name)}.String() }

// Case is one measurement. Bytes is the payload of one repetition; every
// sample is nanoseconds for one repetition.
type Case struct {
	ID      string         `json:"id"`
	Axes    Axes           `json:"axes"`
	Unit    string         `json:"unit"`
	Bytes   uint64         `json:"bytes"`
	Status  Status         `json:"status"`
	Reason  Text           `json:"reason"`
	Samples []float64      `json:"samples_ns"`
	At      []float64      `json:"samples_at_seconds,omitempty"` // when each ended, since the group began
	Stats   *Stats         `json:"stats"`
	Verify  *verify.Result `json:"verify"`
	Flags   []string       `json:"flags"`
}

// Stats describes the samples of a case. Low and High are the interval of the median, null if there are too few samples or places for one. Value is the median in the case's
// unit.
type Stats struct {
	N         int      `json:"n"`
	Loops     int      `json:"loops"`            // repetitions in one sample
	Rounds    int      `json:"rounds,omitempty"` // places where memory lay that is kept over several samples, one after the other
	Places    []int    `json:"places,omitempty"` // how many samples were taken on each of them
	Stop      string   `json:"stop"`
	Median    float64  `json:"median_ns"`
	MAD       float64  `json:"mad_ns"`
	Min       float64  `json:"min_ns"`
	Max       float64  `json:"max_ns"`
	P5        float64  `json:"p5_ns"`
	P95       float64  `json:"p95_ns"`
	Low       *float64 `json:"low_ns"`
	High      *float64 `json:"high_ns"`
	Level     float64  `json:"level,omitempty"` // of the interval: 0.95, or more if samples are few
	Value     float64  `json:"value"`
	ValueLow  *float64 `json:"value_low"`
	ValueHigh *float64 `json:"value_high"`

	Traffic *float64 `json:"traffic,omitempty"`  // device to device: read and written, twice the payload
	Timer   *float64 `json:"timer_ns,omitempty"` // what timing itself took, as a part of each repetition; it is in the samples
	*Both
	*Growth
	*Sharing
	*Pooled
}

// Places are those of Stats, if there are any. An older report has only their number.
func (c *Case) Places() []int {
	switch s := c.Stats; {
	case s == nil:
		return nil
	case s.Places == nil && s.Rounds > 0:
		return stat.Runs(len(c.Samples), s.Rounds)
	default:
		return s.Places
	}
}

// Both is added to Stats by a copy in both directions at once. Value is the sum
// of the two.
type Both struct {
	Forward float64 `json:"forward"`
	Reverse float64 `json:"reverse"`
}

// Growth is added to Stats by growing. Peak is the most memory that the
// contender held at once, by its own count: an old block beside the new one.
type Growth struct {
	Steps   int         `json:"steps"`
	StepP50 float64     `json:"step_p50_ns"`
	StepP99 *float64    `json:"step_p99_ns"` // null if there are too few steps
	StepMax float64     `json:"step_max_ns"`
	Copied  uint64      `json:"bytes_copied"` // by growing, without what was appended
	Peak    uint64      `json:"peak_bytes"`
	Moves   int         `json:"moves"` // how often the address changed
	Samples [][]float64 `json:"step_samples_ns"`
}

// Sharing is added to Stats by sharing with other processes.
type Sharing struct {
	P99 *float64 `json:"p99_ns"` // null if there are too few samples
}

// Pooled is added to Stats by the replay of a trace on a pool. Both peaks are the most of all
// samples. Reserved is what the pool held.
type Pooled struct {
	Live     uint64 `json:"live_peak_bytes"` // of blocks, as asked for
	Reserved uint64 `json:"reserved_peak_bytes"`
	Failures int    `json:"failed_allocs"` // for want of memory, in all samples
}

// Comparison says how the time of case B relates to that of case A, which is of the
// baseline if it has the same name. Above 1, B takes longer.
type Comparison struct {
	ID      string       `json:"id"`
	A       string       `json:"a"`
	B       string       `json:"b"`
	Ratio   *float64     `json:"ratio"`
	Low     *float64     `json:"low"`
	High    *float64     `json:"high"`
	Level   float64      `json:"level,omitempty"` // of the interval: 0.95, or more if samples are few
	Margin  float64      `json:"margin"`
	Verdict stat.Verdict `json:"verdict"`
	Reason  Text         `json:"reason"`
}

// CommandCompare is Run.Command of a report that compares two runs and has measured
// nothing.
const CommandCompare = "compare"

// Exit codes of the command.
const (
	ExitPassed      = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitMismatch    = 3
	ExitWorse       = 4
	ExitWaived      = 77
	ExitInterrupted = 130
)

// Exit returns the exit code of the worst case. Wrong data are worse than an
// interruption.
func (r *Report) Exit() int {
	count := r.Count()
	switch {
	case count[Failed] > 0:
		return ExitMismatch
	case r.Run.Interrupted:
		return ExitInterrupted
	case count[Error] > 0:
		return ExitError
	case count[Waived] > 0 && count[Waived] == len(r.Cases):
		return ExitWaived
	}
	return ExitPassed
}

// Count returns the number of cases for each status.
func (r *Report) Count() map[Status]int {
	count := map[Status]int{}
	for _, c := range r.Cases {
		count[c.Status]++
	}
	return count
}
