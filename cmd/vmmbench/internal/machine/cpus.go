package machine

import (
	"fmt"
	"strconv"
	"strings"
)

// CPUs reads a list of CPUs of the kernel, such as 0-3,8.
func CPUs(text string) (list []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, several := strings.Cut(part, "-")
		if !several {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || first > last || last-first > 1<<16 {
			return nil, fmt.Errorf("%q is no list of numbers", text)
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}

// CPUsOfNode returns the CPUs of a NUMA node, from the file system at root.
func CPUsOfNode(root string, node int) ([]int, error) {
	text, err := line(root, fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil, fmt.Errorf("the system has no NUMA node %d: %w", node, err)
	}
	if text == "" {
		return nil, fmt.Errorf("NUMA node %d has no CPUs", node)
	}
	return CPUs(text)
}
