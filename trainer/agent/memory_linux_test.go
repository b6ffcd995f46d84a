package agent

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

func TestPagesOfTheStartAreUnmapped(t *testing.T) {
	resident := func() int {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, found := range regexp.MustCompile(`Rss(?:File|Shmem):\s+(\d+) kB`).FindAllSubmatch(text, -1) { // a file in a tmpfs is in RssShmem
			kilobytes, err := strconv.Atoi(string(found[1]))
			if err != nil {
				t.Fatal(err)
			}
			total += kilobytes
		}
		return total
	}
	before := resident()
	if err := unmapStart(); err != nil {
		t.Fatal(err)
	}
	if after := resident(); after >= before {
		t.Errorf("resident pages of files: %d kB, expected less than the %d kB before", after, before)
	}
}
