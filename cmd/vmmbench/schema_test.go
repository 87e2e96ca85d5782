package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

const schemaFile = "../../docs/reference/vmmbench.schema.json"

// schemaURL is the name of the strict schema while it is compiled.
const schemaURL = "schema.json"

// readSchema returns the published schema.
func readSchema(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	schema, ok := doc.(map[string]any)
	require.True(t, ok)
	delete(schema, "$id") // it would be the base of references
	return schema
}

// forbidUnknown makes a schema refuse fields that it does not describe. The published one
// allows them, because a newer vmmbench may write some.
func forbidUnknown(schema any) {
	switch x := schema.(type) {
	case map[string]any:
		_, described := x["properties"]
		_, decided := x["additionalProperties"]
		// A condition describes only a part of its object.
		if described && !decided && x["type"] != nil {
			x["additionalProperties"] = false
		}
		for _, part := range x {
			forbidUnknown(part)
		}
	case []any:
		for _, part := range x {
			forbidUnknown(part)
		}
	}
}

// strictSchema compiles the part of the schema that ref names, "" for all of it.
func strictSchema(t *testing.T, ref string) *jsonschema.Schema {
	t.Helper()
	schema := readSchema(t)
	forbidUnknown(schema)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(schemaURL, schema))
	compiled, err := c.Compile(schemaURL + ref)
	require.NoError(t, err)
	return compiled
}

// conforms validates a JSON text.
func conforms(t *testing.T, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return schema.Validate(doc)
}

// What vmmbench writes is what the schema says.
func TestOutputsConformToTheSchema(t *testing.T) {
	whole, line := strictSchema(t, ""), strictSchema(t, "#/$defs/line")
	dir := t.TempDir()
	fast := []string{"--device", "host", "--progress", "off", "--samples", "7"}
	small := append([]string{"--min-time", "0"}, fast...)
	runs := map[string][]string{
		"tour":    append([]string{"--size", "64K"}, small...),
		"bw":      append([]string{"bw", "--size", "64K", "--direction", "d2d,both", "--chunk", "0,2M"}, small...),
		"corrupt": append([]string{"bw", "--size", "64K", "--corrupt", "5", "--verify", "edges"}, small...),
		"grow":    append([]string{"grow", "--size", "64K", "--step", "32K"}, fast...),
		"off":     append([]string{"grow", "--size", "64K", "--step", "32K", "--verify", "off"}, fast...),
		"ops":     append([]string{"ops", "--size", "2M", "--total", "4M", "--busy", "0"}, fast...),
		"p2p":     append([]string{"p2p", "--size", "4,64K", "--grants", "1"}, small...),
		"sleep":   append([]string{"sleep", "--size", "64K"}, fast...),
		"info":    {"info", "--device", "host"},
		"absent":  {"bw", "--device", "host:99"},
		"huge":    {"bw", "--device", "host", "--size", "64T", "--progress", "off"},
	}
	for name, args := range runs {
		json, ndjson := filepath.Join(dir, name+".json"), filepath.Join(dir, name+".ndjson")
		bench(t, append(args, "-o", json, "-o", ndjson)...)
		text, err := os.ReadFile(json)
		require.NoError(t, err)
		require.NoError(t, conforms(t, whole, text), name)
		text, err = os.ReadFile(ndjson)
		require.NoError(t, err)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		require.Greater(t, len(lines), 2)
		for _, one := range lines {
			require.NoError(t, conforms(t, line, one), "%s: %s", name, one)
		}
	}
	_, out, _ := bench(t, "compare", "--format", "json", filepath.Join(dir, "bw.json"), filepath.Join(dir, "bw.ndjson"))
	require.NoError(t, conforms(t, whole, []byte(out)), "compare")
	require.Contains(t, out, `"baseline"`)

	ctx, cancel := context.WithCancel(t.Context())
	var partial bytes.Buffer
	code := run(ctx, testSettings(), append([]string{"--size", "64K", "--format", "json", "--progress", "plain"}, "--device", "host", "--samples", "3"),
		&partial, &interrupter{n: 3, cancel: cancel})
	require.Equal(t, report.ExitInterrupted, code)
	require.NoError(t, conforms(t, whole, partial.Bytes()), "interrupted")
}

// The published reports are what the published schema says. It allows fields that are gone.
func TestPublishedReportsConformToTheSchema(t *testing.T) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(schemaURL, readSchema(t)))
	schema, err := c.Compile(schemaURL)
	require.NoError(t, err)
	files, err := filepath.Glob("../../docs/benchmarks/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range testgate.Effort(files[:1], files, files) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, conforms(t, schema, text), file)
	}
}

// mutilate replaces what is at a path in a JSON document by a function of it.
func mutilate(doc any, path []any, change func(any) any) any {
	if len(path) == 0 {
		return change(doc)
	}
	switch x := doc.(type) {
	case map[string]any:
		key := fmt.Sprint(path[0])
		if value := mutilate(x[key], path[1:], change); value == nil {
			delete(x, key)
		} else {
			x[key] = value
		}
	case []any:
		if i, ok := path[0].(int); ok {
			x[i] = mutilate(x[i], path[1:], change)
		}
	}
	return doc
}

// TestSchemaRefuses is the control: reports that are wrong somewhere do not pass.
func TestSchemaRefuses(t *testing.T) {
	whole := strictSchema(t, "")
	older, newer := verdictRuns(t)
	base, list, err := report.Compare([]*report.Report{older}, []*report.Report{newer}, report.CompareOptions{Margin: 0.02})
	require.NoError(t, err)
	newer.Baseline, newer.Comparisons = base, append(newer.Comparisons, list...)
	text, err := json.Marshal(newer)
	require.NoError(t, err)
	require.NoError(t, conforms(t, whole, text))

	to := func(x any) func(any) any { return func(any) any { return x } }
	last := len(newer.Comparisons) - 2 // it is faster
	for _, c := range []struct {
		what   string
		path   []any
		change func(any) any
	}{
		{"another schema", []any{"schema"}, to("vmmbench/2")},
		{"no cases", []any{"cases"}, to(nil)},
		{"a number in a string", []any{"cases", 0, "stats", "median_ns"}, to("12")},
		{"a negative time", []any{"cases", 0, "samples_ns", 0}, to(-1)},
		{"an unknown status", []any{"cases", 0, "status"}, to("ok")},
		{"an error without a reason", []any{"cases", 0, "status"}, to("error")},
		{"an unknown stop", []any{"cases", 0, "stats", "stop"}, to("bored")},
		{"an unknown mode", []any{"cases", 0, "verify", "mode"}, to("some")},
		{"passed without statistics", []any{"cases", 0, "stats"}, to(json.RawMessage("null"))},
		{"an unknown field of a case", []any{"cases", 0, "extra"}, to(1)},
		{"an unknown field of the host", []any{"host", "extra"}, to(1)},
		{"an unknown field of a device", []any{"devices", 0, "extra"}, to(1)},
		{"a nested axis", []any{"cases", 0, "axes", "extra"}, to([]any{})},
		{"half of both ways", []any{"cases", 0, "stats", "forward"}, to(1)},
		{"half of growing", []any{"cases", 0, "stats", "steps"}, to(1)},
		{"an unknown verdict", []any{"comparisons", last, "verdict"}, to("unclear")},
		{"a firm verdict without an interval", []any{"comparisons", last, "low"}, to(json.RawMessage("null"))},
		{"no time of the start", []any{"run", "started"}, to("yesterday")},
		{"an unknown field of the baseline", []any{"baseline", "extra"}, to(1)},
		{"no machine of the baseline", []any{"baseline", "host"}, to(nil)},
	} {
		var doc any
		require.NoError(t, json.Unmarshal(text, &doc))
		bad, err := json.Marshal(mutilate(doc, c.path, c.change))
		require.NoError(t, err)
		require.Error(t, conforms(t, whole, bad), c.what)
	}
	// A new axis is no new field.
	var doc any
	require.NoError(t, json.Unmarshal(text, &doc))
	good, err := json.Marshal(mutilate(doc, []any{"cases", 0, "axes", "extra"}, to(1)))
	require.NoError(t, err)
	require.NoError(t, conforms(t, whole, good))
}

// The schema names every verdict and every reason to stop, and describes every field.
func TestSchemaIsComplete(t *testing.T) {
	schema := readSchema(t)
	at := func(path ...string) any {
		var x any = schema
		for _, key := range path {
			object, ok := x.(map[string]any)
			require.True(t, ok, path)
			x = object[key]
		}
		return x
	}
	var verdicts []any
	for _, v := range stat.Verdicts() {
		verdicts = append(verdicts, string(v))
	}
	require.Equal(t, verdicts, at("$defs", "comparison", "properties", "verdict", "enum"))
	require.ElementsMatch(t, []any{string(measure.Enough), string(measure.OutOfTime), string(measure.Interrupted), string(measure.Failed)},
		at("$defs", "stats", "properties", "stop", "enum"))
	require.ElementsMatch(t, []any{string(report.Passed), string(report.Failed), string(report.Waived), string(report.Error), string(report.Interrupted)},
		at("$defs", "case", "properties", "status", "enum"))

	for name, part := range map[string]any{
		"run": report.Run{}, "measure": report.Measure{}, "host": report.Host{}, "limit": report.Limit{}, "device": report.Device{},
		"feature": report.Feature{}, "case": report.Case{}, "stats": report.Stats{}, "comparison": report.Comparison{}, "baseline": report.Baseline{},
		"host_state": report.HostState{}, "device_state": report.DeviceState{}, "link": report.Link{},
	} {
		properties, ok := at("$defs", name, "properties").(map[string]any)
		require.True(t, ok)
		require.ElementsMatch(t, jsonFields(reflect.TypeOf(part)), slices.Collect(maps.Keys(properties)), name)
	}
	requireDescribed(t, "", schema)
}

// jsonFields returns the names of a struct's fields in JSON, with those of what it embeds.
func jsonFields(of reflect.Type) []string {
	var list []string
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Anonymous {
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			list = append(list, jsonFields(embedded)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		list = append(list, name)
	}
	return list
}

// requireDescribed requires a description of each property of an object, and of nothing
// less than it: a reference has that of what it names.
func requireDescribed(t *testing.T, path string, x any) {
	t.Helper()
	object, ok := x.(map[string]any)
	if !ok {
		return
	}
	if properties, ok := object["properties"].(map[string]any); ok && object["type"] != nil {
		for name, p := range properties {
			property, ok := p.(map[string]any)
			require.True(t, ok)
			if property["$ref"] == nil {
				require.NotEmpty(t, property["description"], path+"/"+name)
			}
		}
	}
	for key, part := range object {
		requireDescribed(t, path+"/"+key, part)
	}
}
