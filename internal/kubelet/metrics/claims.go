package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// volumeStat is one thing that is told of the file system of a claim's volume.
type volumeStat struct {
	name string
	desc *prometheus.Desc
	of   func(s *unix.Statfs_t) uint64
}

var volumeStats = []volumeStat{
	newVolumeStat("capacity_bytes", "Capacity in bytes of the volume", func(s *unix.Statfs_t) uint64 { return s.Blocks * uint64(s.Bsize) }),
	newVolumeStat("available_bytes", "Number of available bytes in the volume", func(s *unix.Statfs_t) uint64 { return s.Bavail * uint64(s.Bsize) }),
	newVolumeStat("used_bytes", "Number of used bytes in the volume", func(s *unix.Statfs_t) uint64 { return (s.Blocks - s.Bfree) * uint64(s.Bsize) }),
	newVolumeStat("inodes", "Maximum number of inodes in the volume", func(s *unix.Statfs_t) uint64 { return s.Files }),
	newVolumeStat("inodes_free", "Number of free inodes in the volume", func(s *unix.Statfs_t) uint64 { return s.Ffree }),
	newVolumeStat("inodes_used", "Number of used inodes in the volume", func(s *unix.Statfs_t) uint64 { return s.Files - s.Ffree }),
}

func newVolumeStat(name, help string, of func(*unix.Statfs_t) uint64) volumeStat {
	return volumeStat{name, desc("volume_stats_"+name, help, "namespace", "persistentvolumeclaim"), of}
}

// diskTimeout is how long a disk may take to answer; one behind a network may be away for ever.
const diskTimeout = time.Second

// asked are the directories whose disks have not answered yet: they are not asked again, so that a disk that is away holds up one goroutine only.
var asked sync.Map

// collectClaims tells how full the volumes of claims are, as far as their disks answer.
func collectClaims(claims map[types.NamespacedName]string, emit func(*prometheus.Desc, float64, ...string)) {
	for claim, dir := range claims {
		if s, ok := fileSystem(dir); ok {
			for _, v := range volumeStats {
				emit(v.desc, float64(v.of(s)), claim.Namespace, claim.Name)
			}
		}
	}
}

// fileSystem asks the disk of a directory, unless it does not answer.
func fileSystem(dir string) (*unix.Statfs_t, bool) {
	if _, waiting := asked.LoadOrStore(dir, true); waiting {
		return nil, false
	}
	answer := make(chan *unix.Statfs_t, 1)
	go func() {
		s := &unix.Statfs_t{}
		if unix.Statfs(dir, s) != nil {
			s = nil
		}
		asked.Delete(dir)
		answer <- s
	}()
	select {
	case s := <-answer:
		return s, s != nil
	case <-time.After(diskTimeout):
		return nil, false
	}
}
