//go:build !linux

package main

import "errors"

func runOn([]int) (func() error, error) {
	return nil, errors.New("this system cannot keep a process on CPUs; Linux can")
}
