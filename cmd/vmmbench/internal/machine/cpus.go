package machine

import (
	"errors"
	"fmt"
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
