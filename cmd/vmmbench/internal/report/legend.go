package report

import (
	"regexp"
	"slices"
	"strings"
)

// terms are the words that need an explanation, in the order in which it is printed. Those of
// metrics stand with them.
var terms = []Word{
	{"path", "what connects two devices, as nvidia-smi topo -m has it: NV18 is 18 NVLinks; PIX, PXB, PHB, NODE, SYS are PCIe, each longer than the one before"},
	{"granularity", "sizes of chunks are multiples of it"},
	{"95 %", "the interval of the median, or of the ratio: of 100 such, 95 or more contain the true one"},
	{"range", "an interval of fewer than 30 samples, made for 99.8 % and so wider"},
	{"from \\ to", "the device in the row copies: it writes to memory of the device in the column, or reads it; with both, each writes to the other's"},
	{"grant", "Range.Grant gives other devices, the peers, access to so many chunks of 2 MiB; revoke takes it back"},
	{"h2d", "from host to device"},
	{"d2h", "from device to host"},
	{"d2d", "within the device"},
	{"both", "two copies at once, one each way; the median is the bytes of both over the longer time"},
	{"ce", "the driver copies: on a GPU, its copy engines"},
	{"sm", "a kernel copies: on a GPU, its processors"},
	{"none", "no access to the memory of the other device"},
	{"pageable", "ordinary host memory, which the driver copies through its own"},
	{"pinned", "page-locked host memory"},
	{"staging", "pageable memory, copied through pinned blocks of this library"},
	{"touched", "memory of the host that was written before"},
	{"fresh", "newly mapped memory of the host: the copy is the first to write to its pages"},
	{"vmm", "memory of this library, which grows in place"},
	{"vmm-whole", "no growth: memory of this library, mapped at once"},
	{"vmm-ahead", "grows in place, with memory mapped before it is needed"},
	{"vmm-kept", "grows in place, from chunks that an earlier growth released"},
	{"cuMemAlloc", "ordinary device memory"},
	{"mallocAsync", "device memory from the driver's pool"},
	{"mmap", "ordinary memory of the system"},
	{"cuMemAlloc-copy", "allocates at each step and copies"},
	{"mallocAsync-copy", "allocates at each step from the driver's pool, which keeps its memory, and copies"},
	{"mmap-copy", "maps at each step and copies"},
	{"cuMemAlloc-double", "allocates twice as much when it is full, and copies"},
	{"mmap-double", "maps twice as much when it is full, and copies"},
	{"mremap", "moves pages to a larger range of addresses and copies nothing"},
	{"go-append", "append of Go"},
	{"go-append-warm", "append of Go in a heap that keeps its pages"},
	{"enable", "ordinary memory with peer access on"},
	{"ladder", "the library chooses the sizes of chunks"},
	{"op", "what is timed"},
	{"ranges", "how many there are; the time is that of all of them"},
	{"OPS", "each call is for one chunk: reserve addresses, create memory, map it there, setaccess, unmap, release the memory, free the addresses; export to a descriptor, and import; cuMemAlloc and mallocAsync with what undoes them; grow, a range to 1 GiB or one chunk, in chunks of that size; regrow, the same from kept chunks"},
	{"access", "the first device can be granted memory of the second"},
	{"atomics", "atomic operations work over the path"},
	{"rank", "relative speed of the path by the driver, 0 the best"},
	{"now", "the access that this process has granted: none, read or read-write"},
	{"attach", "a process attaches and has mapped all there is"},
	{"growth", "the owner appends over the end of a chunk, and a process can read there"},
	{"append", "the owner appends within a chunk, and a process can read there"},
	{"wake", "of share: a byte through a pipe, read by the same process; of sleep and of ranges: Wake, after a Sleep"},
	{"make", "make all of the ranges"},
	{"first-row", "append 128 bytes to each"},
	{"next-cold", "each grows by a second chunk"},
	{"next-kept", "the same, by chunks that an earlier growth released"},
	{"next-ahead", "the same, where growth ahead has mapped it"},
	{"first", "of sleep: the first Sleep of a range"},
	{"second", "of sleep: a later one, into host memory that the range has kept"},
	{"keep", "the contents of a range that sleeps wait in host memory"},
	{"drop", "they are lost"},
	{"pinned-copy", "a copy of as many bytes by host memory that was page-locked before, which is the limit"},
	{"pool", "as mem: a pool of this library, memory that grows in place"},
	{"how", "how memory is shared: fd, a range by descriptors of its chunks; pool, a block of the driver's pool by the pool's descriptor and a token; legacy, plain memory by cuIpcOpenMemHandle"},
	{"gated", "timed by the device, with all work queued before it begins"},
	{"ungated", "timed by the device; queueing is in the time"},
	{"gate-timeout", "as ungated, because the device began before all was queued"},
	{"wall-clock", "timed by the host, from the call to the end of the work"},
	{"timer-cost", "timing itself took over 1 % of a sample, and is in the figure"},
	{"resumed", "measured by the earlier run that --resume goes on with"},
	{"cached", "the data fit into a cache, which is faster than memory"},
	{"short-samples", "samples are shorter than --min-time: no more copies fit behind the gate"},
	{"few-samples", "too few samples, or places where memory lay, for an interval"},
	{"noisy", "the samples' standard deviation is over 5 % of their mean"},
	{"drift", "the second half of the samples differs from the first by more than the margin"},
	{"correlated", "successive samples resemble each other, so the interval is wider"},
	{"verified", "how much of the result was compared with what it should be: all, or so many bytes, of them the edges of each chunk"},
	{"ratio of times", "the time of mem over that of against, below 1 mem is faster. Each turn has a ratio, and this is their median, which need not be the ratio of the medians. Of 30 turns and more, ten parts of the run have a median each, and this is theirs"},
	{"new run against old", "the ratio is the new run's time over the old one's, below 1 it is faster"},
	{"margin", "how far from 1 a ratio may be and still count as equal"},
	{"equal", "the whole interval lies within the margin"},
	{"slower", "the whole interval lies above the margin"},
	{"faster", "the whole interval lies below the margin"},
	{"at the margin", "the ratio is about as far from 1 as the margin, so more samples would not help"},
	{"too noisy", "the interval is too wide for a verdict"},
	{"one run", "they differ, but one run of each does not know what differs from run to run: compare three of each, or add once to --fail-on"},
	{"too few", "samples, or places where memory lay, for an interval"},
	{"not measured", "there is no ratio, and --format json says why"},
}

// allTerms are terms and the columns of metrics.
func allTerms() []Word {
	list := slices.Clone(terms)
	for _, m := range metrics {
		word := func(w Word) bool { return w.Word == m.label }
		if m.Means != "" && !slices.ContainsFunc(list, word) {
			list = append(list, Word{m.label, m.Means})
		}
	}
	return list
}

// known are the words that a brief report does not explain.
var known = []string{"h2d", "d2h", "d2d", "median", "n", "mmap", "mremap", "go-append", "pageable", "pinned", "granularity"}

// legend explains the words that occur in the tables.
func (p *document) legend(leaveOut ...string) {
	shown := p.shown.String()
	found := map[string]bool{}
	all := without(allTerms(), func(t Word) bool { return slices.Contains(leaveOut, t.Word) })
	// "too noisy" is not "noisy": terms of several words come first, and are cut out.
	for _, several := range []bool{true, false} {
		for _, t := range all {
			if strings.Contains(t.Word, " ") == several && hasWord(shown, t.Word) {
				found[t.Word] = true
				if several {
					shown = strings.ReplaceAll(shown, t.Word, "")
				}
			}
		}
	}
	if words := without(all, func(t Word) bool { return !found[t.Word] }); len(words) > 0 {
		p.pieces = append(p.pieces, Piece{Heading: "Words", Words: words})
	}
}

// hasWord reports whether a word stands in a text, and not as a part of another.
func hasWord(s, word string) bool {
	const end = `(?:^|$|[^-_\pL\pN])`
	return strings.Contains(s, word) && regexp.MustCompile(end+regexp.QuoteMeta(word)+end).MatchString(s)
}
