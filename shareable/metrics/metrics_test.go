package metrics

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/promstats"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/store"
)

// TestEveryNumberHasAMetric, also one that is new.
func TestEveryNumberHasAMetric(t *testing.T) {
	t.Parallel()
	require.Empty(t, promstats.Mismatches[shareable.Stats](serverRows))
	require.Empty(t, promstats.Mismatches[store.Report](storeRows, notStoreRows...))
	require.Empty(t, promstats.Mismatches[store.UserReport](userRows, notUserRows...))
	require.Empty(t, promstats.Mismatches[budget.Report](budgetRows, notBudgetRows...))
	require.Empty(t, promstats.Mismatches[budget.MemberReport](memberRows, notMemberRows...))
}

// gathered is what a registry has as Prometheus reads it, by name and labels.
func gathered(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	var text bytes.Buffer
	for _, f := range families {
		require.Equal(t, strings.HasSuffix(f.GetName(), "_total"), f.GetType().String() == "COUNTER", f.GetName())
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	p := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := p.TextToMetricFamilies(&text)
	require.NoError(t, err)
	all := map[string]float64{}
	for name, f := range parsed {
		if base, counter := strings.CutSuffix(name, "_total"); counter {
			require.NotContains(t, parsed, base) // a counter's name in OpenMetrics
		}
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += "{" + l.GetName() + "=" + l.GetValue() + "}"
			}
			require.NotContains(t, all, key)
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// report is a report with each number of another value.
func report() store.Report {
	return store.Report{
		Stats: store.Stats{Objects: 1, Bytes: 2, Clients: 3, Leases: 4, Waits: 5, Created: 6, Sealed: 7, Aborted: 8, Deleted: 9,
			Evicted: 10, Granted: 11, Restarts: 12,
			Conns: shareable.Stats{KeptFDs: 13, Accepted: 14, Refused: 15, TimedOut: 16, Violations: 17, Frames: 18, Resyncs: 19}},
		Device: "host:0", Instance: "ab", Uptime: 20 * time.Second, ReadersBehind: 21,
		Limits: store.Limits{Bytes: 22, BytesPerUser: 23, Objects: 24, ObjectsPerUser: 25, RecordBytes: 26, RecordBytesPerUser: 27,
			Descriptors: 28, DescriptorsPerUser: 29},
		Users: []store.UserReport{
			{UID: 7, Bytes: 30, Objects: 31, RecordBytes: 32, Descriptors: 33, Clients: 34, Refused: map[string]uint64{"limit": 35, "busy": 36}},
			{UID: 8, Bytes: 37},
		},
	}
}

// TestStore: what a report says, under the names that dashboards have.
func TestStore(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	reads := 0
	read := func() store.Report {
		reads++
		x := report()
		x.Behind = []shareable.ReaderStats{{BehindSince: time.Now().Add(-time.Hour)}, {BehindSince: time.Now().Add(-time.Minute)}}
		return x
	}
	require.NoError(t, r.Register(newStore(read, "v1\xff")))
	require.Error(t, r.Register(newStore(read, "v1")))
	got := gathered(t, r)
	require.Equal(t, 1, reads)
	require.InDelta(t, 3600, got["cuvmm_store_reader_behind_seconds"], 60)
	delete(got, "cuvmm_store_reader_behind_seconds")
	want := map[string]float64{
		"info{device=host:0}{instance=ab}{version=v1\uFFFD}": 1,
		"objects": 1, "bytes": 2, "clients": 3, "leases": 4, "waits": 5, "created_total": 6, "sealed_total": 7, "aborted_total": 8,
		"deleted_total": 9, "evicted_total": 10, "leases_granted_total": 11, "restarts_total": 12, "kept_descriptors": 13,
		"connections_total": 14, "connections_refused_total": 15, "connections_timed_out_total": 16, "protocol_violations_total": 17,
		"frames_total": 18, "resyncs_total": 19, "uptime_seconds": 20, "readers_behind": 21, "limit_bytes": 22, "limit_user_bytes": 23,
		"limit_objects": 24, "limit_user_objects": 25, "limit_record_bytes": 26, "limit_user_record_bytes": 27, "limit_descriptors": 28,
		"limit_user_descriptors": 29, "user_bytes{uid=7}": 30, "user_objects{uid=7}": 31, "user_record_bytes{uid=7}": 32,
		"user_descriptors{uid=7}": 33, "user_clients{uid=7}": 34, "requests_refused_total{reason=limit}{uid=7}": 35,
		"requests_refused_total{reason=busy}{uid=7}": 36, "user_bytes{uid=8}": 37, "user_objects{uid=8}": 0, "user_record_bytes{uid=8}": 0,
		"user_descriptors{uid=8}": 0, "user_clients{uid=8}": 0,
	}
	require.Len(t, got, len(want))
	for name, n := range want {
		require.Contains(t, got, "cuvmm_store_"+name)
		require.InDelta(t, n, got["cuvmm_store_"+name], 0, name)
	}
}

// TestNil: a store and a server that are nil are ones without numbers.
func TestNil(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewServer(nil), NewStore(nil, ""))
	require.Len(t, gathered(t, r), len(serverRows)+len(storeRows)+2)
}

// TestMembersOfOneName: a process can be two members of one name, and the metrics go on.
func TestMembersOfOneName(t *testing.T) {
	t.Parallel()
	members := []budget.MemberReport{{Name: "m", PID: 7, Lease: 1}, {Name: "m", PID: 7, Lease: 2}, {Name: "m", PID: 8, Lease: 3}, {Name: "m", Lease: 4}, {Name: "m", Lease: 5}}
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(newStore(func() store.Report {
		return store.Report{Budgets: []budget.Report{{Device: "d", Members: members}}}
	}, "v1")))
	got := gathered(t, r)
	for pid, n := range map[string]float64{"7": 1, "7?1": 2, "8": 3, "?3": 4, "?4": 5} {
		require.InDelta(t, n, got["cuvmm_budget_member_lease_bytes{device=d}{member=m}{pid="+pid+"}"], 0, pid)
	}
}
