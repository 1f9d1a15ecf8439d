package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// volumeStat is a metric of the file system of a claim's volume.
type volumeStat struct {
	name  string
	desc  *prometheus.Desc
	value func(s *unix.Statfs_t) uint64
}

var volumeStats = []volumeStat{
	newVolumeStat("capacity_bytes", "Capacity in bytes of the volume", func(s *unix.Statfs_t) uint64 { return s.Blocks * uint64(s.Bsize) }),
	newVolumeStat("available_bytes", "Number of available bytes in the volume", func(s *unix.Statfs_t) uint64 { return s.Bavail * uint64(s.Bsize) }),
	newVolumeStat("used_bytes", "Number of used bytes in the volume", func(s *unix.Statfs_t) uint64 { return (s.Blocks - s.Bfree) * uint64(s.Bsize) }),
	newVolumeStat("inodes", "Maximum number of inodes in the volume", func(s *unix.Statfs_t) uint64 { return s.Files }),
	newVolumeStat("inodes_free", "Number of free inodes in the volume", func(s *unix.Statfs_t) uint64 { return s.Ffree }),
	newVolumeStat("inodes_used", "Number of used inodes in the volume", func(s *unix.Statfs_t) uint64 { return s.Files - s.Ffree }),
}

func newVolumeStat(name, help string, value func(*unix.Statfs_t) uint64) volumeStat {
	return volumeStat{name, desc("volume_stats_"+name, help, "namespace", "persistentvolumeclaim"), value}
}

// statfsTimeout is how long a scrape waits for a file system. A network file system may block forever.
const statfsTimeout = time.Second

// pendingStatfs are the directories whose statfs has not returned yet. They are not queried again, so that an
// unresponsive file system blocks only one goroutine.
var pendingStatfs sync.Map

// collectClaims emits the volume statistics of claims whose file systems respond in time.
func collectClaims(claims map[types.NamespacedName]string, emit func(*prometheus.Desc, float64, ...string)) {
	for claim, dir := range claims {
		if s, ok := statfs(dir); ok {
			for _, v := range volumeStats {
				emit(v.desc, float64(v.value(s)), claim.Namespace, claim.Name)
			}
		}
	}
}

// statfs queries the file system of a directory. It returns false if it does not respond in time.
func statfs(dir string) (*unix.Statfs_t, bool) {
	if _, waiting := pendingStatfs.LoadOrStore(dir, true); waiting {
		return nil, false
	}
	result := make(chan *unix.Statfs_t, 1)
	go func() {
		s := &unix.Statfs_t{}
		if unix.Statfs(dir, s) != nil {
			s = nil
		}
		pendingStatfs.Delete(dir)
		result <- s
	}()
	select {
	case s := <-result:
		return s, s != nil
	case <-time.After(statfsTimeout):
		return nil, false
	}
}
