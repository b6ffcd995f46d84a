//go:build race

package dataport

func init() { isRace = true }
