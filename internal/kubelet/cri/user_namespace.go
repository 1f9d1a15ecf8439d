package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/atomicfile"
)

// idsPerPod is how many ids a pod with users of its own has. The first such range is the host's and never given away.
const idsPerPod = 65536

// UserNamespaces gives pods that want users of their own ranges of the host's ids, no two the same. What a pod has stands in its
// directory and goes with it, so nothing has to be given back, and a restarted kubelet knows it.
type UserNamespaces struct {
	dir string // of all pods
	mu  sync.Mutex
}

// NewUserNamespaces keeps ranges in the pods' directories below directory.
func NewUserNamespaces(dir string) *UserNamespaces { return &UserNamespaces{dir: dir} }

// idRange is upstream's record of a range.
type idRange struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type idRecord struct {
	UIDs []idRange `json:"uidMappings"`
	GIDs []idRange `json:"gidMappings"`
}

// Of returns the ids of a pod. supported says whether the pod's runtime handler knows user namespaces; handler is its name. The pod's
// directory exists.
func (u *UserNamespaces) Of(pod *corev1.Pod, handler string, supported bool) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, nil
	}
	if !supported && handler != "" {
		return nil, fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	}
	if !supported {
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	record, err := u.read(pod.UID)
	if errors.Is(err, os.ErrNotExist) {
		record, err = u.allocate(pod.UID)
	}
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mappings(record.UIDs), Gids: mappings(record.GIDs)}, nil
}

// allocate takes the lowest range that no pod has.
func (u *UserNamespaces) allocate(uid types.UID) (idRecord, error) {
	entries, err := os.ReadDir(u.dir)
	if err != nil {
		return idRecord{}, err
	}
	var taken []uint32
	for _, entry := range entries {
		record, err := u.read(types.UID(entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return idRecord{}, err
		}
		taken = append(taken, record.UIDs[0].HostID)
	}
	first := uint64(idsPerPod)
	for slices.Contains(taken, uint32(first)) {
		first += idsPerPod
	}
	if first+idsPerPod > 1<<32 {
		return idRecord{}, errors.New("could not find an empty slot to allocate a user namespace")
	}
	free := []idRange{{HostID: uint32(first), Length: idsPerPod}}
	record := idRecord{UIDs: free, GIDs: free}
	text, err := json.Marshal(record)
	if err != nil {
		return idRecord{}, err
	}
	return record, atomicfile.Write(u.file(uid), text, 0o600)
}

// read returns what a pod has. A record that does not fit would let two pods share users, so it is an error.
func (u *UserNamespaces) read(uid types.UID) (idRecord, error) {
	text, err := os.ReadFile(u.file(uid))
	if err != nil {
		return idRecord{}, err
	}
	var record idRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return idRecord{}, fmt.Errorf("read ids of pod %s: %w", uid, err)
	}
	fits := func(ranges []idRange) bool {
		return len(ranges) == 1 && ranges[0].Length == idsPerPod && ranges[0].HostID%idsPerPod == 0 && ranges[0].HostID > 0 && ranges[0].ContainerID == 0
	}
	if !fits(record.UIDs) || !slices.Equal(record.UIDs, record.GIDs) {
		return idRecord{}, fmt.Errorf("the ids of pod %s are not as they were given: %s", uid, text)
	}
	return record, nil
}

func (u *UserNamespaces) file(uid types.UID) string {
	return filepath.Join(u.dir, string(uid), "userns")
}

func mappings(ranges []idRange) []*runtimeapi.IDMapping {
	var all []*runtimeapi.IDMapping
	for _, r := range ranges {
		all = append(all, &runtimeapi.IDMapping{HostId: r.HostID, ContainerId: r.ContainerID, Length: r.Length})
	}
	return all
}
