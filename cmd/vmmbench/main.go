//go:build !man

package main

import "os"

func main() { os.Exit(process(userSettings(), os.Args[1:])) }
