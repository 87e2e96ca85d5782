package machine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// CPUs reads a list of CPUs such as 0-3,8.
func CPUs(text string) ([]int, error) {
	list, err := numbers(text)
	if err == nil && len(list) == 0 {
		err = errors.New("the list is empty")
	}
	return list, err
}

// CPUsOfNode returns the CPUs of a NUMA node, from the file system at root.
func CPUsOfNode(root string, node int) ([]int, error) {
	text, err := line(root, fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil, fmt.Errorf("the system has no NUMA node %d: %w", node, err)
	}
	list, err := CPUs(text)
	if err != nil {
		return nil, fmt.Errorf("NUMA node %d has no CPUs: %w", node, err)
	}
	return list, nil
}

// numbers parses a list of the kernel, such as 0-2,5. It may be empty: a node need not
// have CPUs.
func numbers(text string) ([]int, error) {
	var list []int
	if text == "" {
		return list, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, several := strings.Cut(part, "-")
		if !several {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err := errors.Join(err1, err2); err != nil || first > last || last-first > 1<<16 {
			return nil, fmt.Errorf("%q is no list of numbers", text)
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}
