package drill

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// startTime returns the start time of a process, in ticks since boot.
func startTime(pid int) (ticks uint64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	end := bytes.LastIndexByte(stat, ')') // the name in parentheses can have any character
	if err != nil || end < 0 {
		return 0, false
	}
	fields := strings.Fields(string(stat[end+1:])) // from the third field on
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil
}

// lives reports whether the process still runs, with the registered start time.
func (p Process) lives() bool {
	started, ok := startTime(p.PID)
	return ok && started == p.Started
}

// listener finds the process of this machine that listens at host:port, if this user may see it.
func listener(addr string) (Process, error) {
	inode, err := socketOf(addr)
	if err != nil {
		return Process{}, err
	}
	link := fmt.Sprintf("socket:[%s]", inode)
	folders, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return Process{}, err
	}
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // of another user, or ended
		}
		for _, entry := range entries {
			if to, err := os.Readlink(filepath.Join(folder, entry.Name())); err != nil || to != link {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
			if err := sameProgram(pid); err != nil {
				return Process{}, fmt.Errorf("%s: %w", addr, err)
			}
			started, _ := startTime(pid)
			return Process{Name: "master", PID: pid, Started: started}, nil
		}
	}
	return Process{}, fmt.Errorf("the process that listens at %s belongs to another user: run the drill as that user", addr)
}

// sameProgram returns an error if a process runs another program than this process.
func sameProgram(pid int) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	other, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return err
	}
	if other = strings.TrimSuffix(other, " (deleted)"); filepath.Base(other) != filepath.Base(own) {
		return fmt.Errorf("process %d: expected program %[3]s, found %[2]s: not signalled", pid, other, filepath.Base(own))
	}
	return nil
}

// socketOf finds the inode of the socket that listens at addr, or at that port of every address.
func socketOf(addr string) (inode string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	const listening = "0A"
	wanted := hexAddresses(net.ParseIP(host))
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6 here
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != listening {
				continue
			}
			ip, p, _ := strings.Cut(fields[1], ":")
			if n, err := strconv.ParseUint(p, 16, 16); err == nil && int(n) == number && slices.Contains(wanted, ip) {
				return fields[9], nil
			}
		}
	}
	return "", fmt.Errorf("no process listens at %s on this machine: run the drill where the leader runs", addr)
}

// hexAddresses returns the forms of an address in /proc/net, and the forms of the wildcard address.
func hexAddresses(ip net.IP) (list []string) {
	for _, a := range []net.IP{ip.To4(), net.IPv4zero.To4(), ip.To16(), net.IPv6zero} {
		if a == nil {
			continue
		}
		swapped := slices.Clone(a) // every four bytes are a little-endian number
		for i := 0; i+4 <= len(swapped); i += 4 {
			slices.Reverse(swapped[i : i+4])
		}
		list = append(list, strings.ToUpper(hex.EncodeToString(swapped)))
	}
	return list
}
