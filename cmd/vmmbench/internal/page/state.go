package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// state is what a machine or a device was set to and doing, when the run started and when
// it ended.
type state struct {
	Name string
	Rows [][3]string // what, start, end
}

// states are those of the machine and of its devices. What is not known of either moment
// is left out.
func states(r *report.Report) []state {
	list := []state{{"Machine", stateRows(r.Host.State, r.Host.StateEnd)}}
	for _, d := range r.Devices {
		list = append(list, state{d.Open, stateRows(d.State, d.StateEnd)})
	}
	return slices.DeleteFunc(list, func(s state) bool { return len(s.Rows) == 0 })
}

// stateRows pairs the fields of two states by their names in JSON, in their order.
func stateRows(start, end any) (rows [][3]string) {
	at := map[string]int{}
	for i, s := range []any{start, end} {
		for _, f := range fields(s) {
			if _, ok := at[f[0]]; !ok {
				at[f[0]] = len(rows)
				rows = append(rows, [3]string{strings.ReplaceAll(f[0], "_", " ")})
			}
			rows[at[f[0]]][1+i] = f[1]
		}
	}
	return rows
}

// fields are the names and values of an object that are not null.
func fields(object any) (list [][2]string) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return list
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return list
		}
		if s := valueText(value); s != "" {
			list = append(list, [2]string{fmt.Sprint(name), s})
		}
	}
	return list
}

// valueText prints a value for people; null and an empty list are nothing.
func valueText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case float64:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
	case []any:
		var list []string
		for _, x := range v {
			list = append(list, valueText(x))
		}
		return strings.Join(list, ", ")
	}
	return fmt.Sprint(value)
}
