package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// volumeStat is a metric of a claim's volume.
type volumeStat struct {
	name  string
	desc  *prometheus.Desc
	value func(s *statsapi.FsStats) *uint64
}

var volumeStats = []volumeStat{
	newVolumeStat("capacity_bytes", "Capacity in bytes of the volume", func(s *statsapi.FsStats) *uint64 { return s.CapacityBytes }),
	newVolumeStat("available_bytes", "Number of available bytes in the volume", func(s *statsapi.FsStats) *uint64 { return s.AvailableBytes }),
	newVolumeStat("used_bytes", "Number of used bytes in the volume", func(s *statsapi.FsStats) *uint64 { return s.UsedBytes }),
	newVolumeStat("inodes", "Maximum number of inodes in the volume", func(s *statsapi.FsStats) *uint64 { return s.Inodes }),
	newVolumeStat("inodes_free", "Number of free inodes in the volume", func(s *statsapi.FsStats) *uint64 { return s.InodesFree }),
	newVolumeStat("inodes_used", "Number of used inodes in the volume", func(s *statsapi.FsStats) *uint64 { return s.InodesUsed }),
}

func newVolumeStat(name, help string, value func(*statsapi.FsStats) *uint64) volumeStat {
	return volumeStat{name, desc("volume_stats_"+name, help, "namespace", "persistentvolumeclaim"), value}
}

// collectClaims emits the usage of claims. Pods that share a claim count once.
func collectClaims(volumes map[types.UID][]statsapi.VolumeStats, emit func(*prometheus.Desc, float64, ...string)) {
	emitted := map[statsapi.PVCReference]bool{}
	for _, list := range volumes {
		for i := range list {
			claim := list[i].PVCRef
			if claim == nil || emitted[*claim] {
				continue
			}
			emitted[*claim] = true
			for _, v := range volumeStats {
				if value := v.value(&list[i].FsStats); value != nil {
					emit(v.desc, float64(*value), claim.Namespace, claim.Name)
				}
			}
		}
	}
}
