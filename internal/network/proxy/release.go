package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseMemory returns to the kernel what was needed for a whole table and for the start of the program: free memory of the heap, and the mapped pages of
// the program's own file. The initialization of all packages uses a little of each, and the kernel maps the 64 KiB around every page that is used. Pages that are
// used again are mapped again: they stay in the page cache.
func releaseMemory() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	unmodified, err := unmodifiedMappings(bytes.NewReader(smaps), program)
	if err != nil {
		return err
	}
	for _, m := range unmodified {
		if _, _, number := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); number != 0 {
			return fmt.Errorf("madvise: %w", number)
		}
	}
	return nil
}

// mapping is a range of addresses of the process.
type mapping struct{ start, end uintptr }

// unmodifiedMappings returns the mappings of a file that cannot be written and have no pages of their own: the kernel can read all of their content from the file
// again. A segment that was relocated when the program was loaded is read-only, too, but its pages are not those of the file any more. smaps is that of proc(5).
func unmodifiedMappings(smaps io.Reader, file string) (found []mapping, err error) {
	lines := bufio.NewScanner(smaps)
	var current mapping
	isCandidate := false
	for lines.Scan() {
		line := lines.Text()
		var permissions, offset, device, inode string
		var m mapping
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %s", &m.start, &m.end, &permissions, &offset, &device, &inode); n == 6 {
			current, isCandidate = m, !strings.Contains(permissions, "w") && strings.HasSuffix(line, " "+file)
			continue
		}
		if pages, ok := strings.CutPrefix(line, "Anonymous:"); ok && isCandidate && strings.TrimSpace(pages) == "0 kB" {
			found = append(found, current)
		}
	}
	return found, lines.Err()
}
