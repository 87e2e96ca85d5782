package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cuvmm/cuvmm/internal/promstats"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/store"
)

// storeRows are the names of store.Report, as far as they are of the whole store.
var storeRows = []promstats.Row{
	{Field: "Objects", Name: "cuvmm_store_objects", Help: "Objects, also deleted ones that readers have."},
	{Field: "Bytes", Name: "cuvmm_store_bytes", Help: "Bytes of memory of all objects."},
	{Field: "Clients", Name: "cuvmm_store_clients", Help: "Open connections."},
	{Field: "Leases", Name: "cuvmm_store_leases", Help: "Objects that have a writer."},
	{Field: "Waits", Name: "cuvmm_store_waits", Help: "Requests that wait."},
	{Field: "Created", Name: "cuvmm_store_created_total", Help: "Objects created."},
	{Field: "Sealed", Name: "cuvmm_store_sealed_total", Help: "Objects sealed."},
	{Field: "Aborted", Name: "cuvmm_store_aborted_total", Help: "Objects given up by their writers."},
	{Field: "Deleted", Name: "cuvmm_store_deleted_total", Help: "Objects deleted."},
	{Field: "Evicted", Name: "cuvmm_store_evicted_total", Help: "Objects evicted."},
	{Field: "Granted", Name: "cuvmm_store_leases_granted_total", Help: "Leases granted."},
	{Field: "Restarts", Name: "cuvmm_store_restarts_total", Help: "Server processes before this one."},

	{Field: "Conns.KeptFDs", Name: "cuvmm_store_kept_descriptors", Help: "Descriptors of chunks that are kept open."},
	{Field: "Conns.Accepted", Name: "cuvmm_store_connections_total", Help: "Connections accepted."},
	{Field: "Conns.Refused", Name: "cuvmm_store_connections_refused_total", Help: "Connections refused."},
	{Field: "Conns.TimedOut", Name: "cuvmm_store_connections_timed_out_total", Help: "Connections that took too long."},
	{Field: "Conns.Violations", Name: "cuvmm_store_protocol_violations_total", Help: "Connections that broke the protocol."},
	{Field: "Conns.Frames", Name: "cuvmm_store_frames_total", Help: "Frames of chunks sent."},
	{Field: "Conns.Resyncs", Name: "cuvmm_store_resyncs_total", Help: "Requests to send chunks again."},

	{Field: "Uptime", Name: "cuvmm_store_uptime_seconds", Help: "Time since the serving process began."},
	{Field: "ReadersBehind", Name: "cuvmm_store_readers_behind", Help: "Readers that have not mapped, or unmapped, all that they were told."},

	{Field: "Limits.Bytes", Name: "cuvmm_store_limit_bytes", Help: "Limit of the memory of all objects."},
	{Field: "Limits.BytesPerUser", Name: "cuvmm_store_limit_user_bytes", Help: "Limit of the memory of the objects of one user."},
	{Field: "Limits.Objects", Name: "cuvmm_store_limit_objects", Help: "Limit of the number of objects."},
	{Field: "Limits.ObjectsPerUser", Name: "cuvmm_store_limit_user_objects", Help: "Limit of the number of objects of one user."},
	{Field: "Limits.RecordBytes", Name: "cuvmm_store_limit_record_bytes", Help: "Limit of the server's own memory for names, metadata and waits."},
	{Field: "Limits.RecordBytesPerUser", Name: "cuvmm_store_limit_user_record_bytes", Help: "Limit of the server's own memory for one user."},
	{Field: "Limits.Descriptors", Name: "cuvmm_store_limit_descriptors", Help: "Limit of the descriptors of objects."},
	{Field: "Limits.DescriptorsPerUser", Name: "cuvmm_store_limit_user_descriptors", Help: "Limit of the descriptors of the objects of one user."},
}

// notStoreRows are fields of store.Report that no storeRow has. Clients is Conns.Conns. A store
// publishes no ranges. Device and Instance are labels of cuvmm_store_info. A PID is no measure. The
// others are the rest of Collect.
var notStoreRows = []string{"Conns.Conns", "Conns.Published", "Device", "Instance", "PID", "Refused", "Users", "Behind", "Budgets"}

// userRows are the names of store.UserReport; UID is the label, Refused the rest of Collect.
var userRows = []promstats.Row{
	{Field: "Bytes", Name: "cuvmm_store_user_bytes", Help: "Bytes of memory that count for a user."},
	{Field: "Objects", Name: "cuvmm_store_user_objects", Help: "Objects that count for a user."},
	{Field: "RecordBytes", Name: "cuvmm_store_user_record_bytes", Help: "Bytes of the server's own memory that count for a user."},
	{Field: "Descriptors", Name: "cuvmm_store_user_descriptors", Help: "Descriptors of the server that count for a user."},
	{Field: "Clients", Name: "cuvmm_store_user_clients", Help: "Open connections of a user."},
}

// budgetRows are the names of budget.Report, and memberRows of budget.MemberReport. Texts and times are no measures.
var (
	budgetRows = []promstats.Row{
		{Field: "Budget", Name: "cuvmm_budget_bytes", Help: "Budget of a device."},
		{Field: "Idle", Name: "cuvmm_budget_idle_bytes", Help: "Bytes of it that no member has."},
		{Field: "Counts.Granted", Name: "cuvmm_budget_granted_total", Help: "Requests for a higher lease granted."},
		{Field: "Counts.Refused", Name: "cuvmm_budget_refused_total", Help: "Requests for a higher lease refused."},
		{Field: "Counts.Demands", Name: "cuvmm_budget_demands_total", Help: "Demands on members to give."},
		{Field: "Counts.Expired", Name: "cuvmm_budget_demands_expired_total", Help: "Demands that were not answered in time."},
		{Field: "Counts.GivenBack", Name: "cuvmm_budget_given_back_bytes_total", Help: "Bytes that members gave back."},
	}
	notBudgetRows = []string{"Device", "Members", "LeftOut"}
	memberRows    = []promstats.Row{
		{Field: "Lease", Name: "cuvmm_budget_member_lease_bytes", Help: "Bytes that a member may create."},
		{Field: "Created", Name: "cuvmm_budget_member_created_bytes", Help: "Bytes that it has created, as it said last."},
		{Field: "Share", Name: "cuvmm_budget_member_share_bytes", Help: "Bytes that it can have whatever others do."},
		{Field: "Least", Name: "cuvmm_budget_member_least_bytes", Help: "Bytes that are never taken from it."},
		{Field: "Most", Name: "cuvmm_budget_member_most_bytes", Help: "Bytes that it may have at most; 0: no bound but the budget."},
		{Field: "Wants", Name: "cuvmm_budget_member_wants_bytes", Help: "The lease that it asked for last."},
		{Field: "Gives", Name: "cuvmm_budget_member_gives_bytes", Help: "Bytes that it is asked for now."},
	}
	notMemberRows = []string{"Name", "PID", "Since", "Asked", "IsSilent"}
)

var notUserRows = []string{"UID", "Refused"}

// storeCollector makes metrics of one report, so that they are of one moment.
type storeCollector struct {
	all                    promstats.Set[store.Report]
	user                   promstats.Set[store.UserReport]
	budget                 promstats.Set[budget.Report]
	member                 promstats.Set[budget.MemberReport]
	info, refused, longest *prometheus.Desc
	report                 func() store.Report
	version                string
}

// NewStore returns a collector of the Report of a store. The metrics are of the store without a
// label, of users with the label uid; cuvmm_store_info has the labels device, instance, and version,
// which is the caller's. A registry takes one store; for another one there is
// prometheus.WrapRegistererWith. It makes no driver call. Safe for concurrent use.
func NewStore(s *store.Server, version string) prometheus.Collector {
	return newStore(s.Report, version)
}

func newStore(report func() store.Report, version string) *storeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &storeCollector{
		all: promstats.NewSet[store.Report](storeRows, nil), user: promstats.NewSet[store.UserReport](userRows, nil, "uid"),
		budget: promstats.NewSet[budget.Report](budgetRows, nil, "device"), member: promstats.NewSet[budget.MemberReport](memberRows, nil, "device", "member", "pid"),
		info:    desc("cuvmm_store_info", "The device and the program; the value is 1.", "device", "instance", "version"),
		refused: desc("cuvmm_store_requests_refused_total", "Requests refused, by user and reason.", "uid", "reason"),
		longest: desc("cuvmm_store_reader_behind_seconds", "The longest that a reader is behind."),
		report:  report, version: promstats.LabelValue(version),
	}
}

// Describe sends a description of each metric.
func (c *storeCollector) Describe(to chan<- *prometheus.Desc) {
	c.all.Describe(to)
	c.user.Describe(to)
	c.budget.Describe(to)
	c.member.Describe(to)
	for _, d := range []*prometheus.Desc{c.info, c.refused, c.longest} {
		to <- d
	}
}

// Collect sends what there is now.
func (c *storeCollector) Collect(to chan<- prometheus.Metric) {
	r := c.report()
	to <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, r.Device, r.Instance, c.version)
	c.all.Collect(to, r)
	longest := time.Duration(0)
	for _, b := range r.Behind {
		longest = max(longest, time.Since(b.BehindSince))
	}
	to <- prometheus.MustNewConstMetric(c.longest, prometheus.GaugeValue, longest.Seconds())
	for _, b := range r.Budgets {
		c.budget.Collect(to, b, b.Device)
		seen := map[[2]string]bool{}
		for i, m := range b.Members { // a pid of another namespace is 0, for several
			pid := strconv.Itoa(int(m.PID))
			if m.PID == 0 {
				pid = "?" + strconv.Itoa(i)
			}
			if seen[[2]string{m.Name, pid}] { // a process may join again under the same name
				pid += "?" + strconv.Itoa(i)
			}
			seen[[2]string{m.Name, pid}] = true
			c.member.Collect(to, m, b.Device, m.Name, pid)
		}
	}
	for _, u := range r.Users {
		uid := strconv.FormatUint(uint64(u.UID), 10)
		c.user.Collect(to, u, uid)
		for reason, n := range u.Refused {
			to <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(n), uid, reason)
		}
	}
}
