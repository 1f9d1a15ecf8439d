package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/atomicfile"
)

// checkpointName is upstream's name of the file in the kubelet's directory.
const checkpointName = "dra_manager_state"

// checkpoint is the stored state, in upstream's format.
type checkpoint struct {
	// Data is a checkpointData as JSON.
	Data     string
	Checksum uint32
}

type checkpointData struct {
	metav1.TypeMeta
	ClaimInfoStateList []claimState
}

// claimState is what is stored of a claim.
type claimState struct {
	ClaimUID  types.UID
	ClaimName string
	Namespace string
	PodUIDs   map[types.UID]struct{}
	// DriverState has an entry for each driver of the allocation, also for those that prepare no devices.
	DriverState map[string]driverState
}

type driverState struct {
	Devices []deviceState
}

type deviceState struct {
	PoolName     string
	DeviceName   string
	ShareID      *types.UID
	RequestNames []string
	CDIDeviceIDs []string
}

func (s *claimState) key() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.ClaimName}
}

// save writes the checkpoint. The caller holds mu.
func (c *Claims) save() error {
	data := checkpointData{TypeMeta: metav1.TypeMeta{Kind: "DRACheckpoint", APIVersion: "checkpoint.dra.kubelet.k8s.io/v1"}, ClaimInfoStateList: []claimState{}}
	for _, key := range slices.SortedFunc(maps.Keys(c.claims), compareKeys) {
		data.ClaimInfoStateList = append(data.ClaimInfoStateList, c.claims[key].claimState)
	}
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("checkpoint ResourceClaim state: %w", err)
	}
	if text, err = json.Marshal(checkpoint{Data: string(text), Checksum: crc32.ChecksumIEEE(text)}); err == nil {
		err = atomicfile.Write(filepath.Join(c.Dir, checkpointName), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("checkpoint ResourceClaim state: %w", err)
	}
	return nil
}

func compareKeys(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// load reads the checkpoint. Without it, devices that are still prepared would be forgotten, so a corrupt one is an error.
func (c *Claims) load() error {
	path := filepath.Join(c.Dir, checkpointName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read checkpoint of resource claims: %w", err)
	}
	var stored checkpoint
	var data checkpointData
	if err = json.Unmarshal(text, &stored); err == nil {
		if sum := crc32.ChecksumIEEE([]byte(stored.Data)); sum != stored.Checksum {
			err = fmt.Errorf("checkpoint is corrupted: checksum %d, expected %d", sum, stored.Checksum)
		} else {
			err = json.Unmarshal([]byte(stored.Data), &data)
		}
	}
	if err != nil {
		return fmt.Errorf("read checkpoint of resource claims, please drain the node and remove %s: %w", path, err)
	}
	for _, s := range data.ClaimInfoStateList {
		if s.PodUIDs == nil {
			s.PodUIDs = map[types.UID]struct{}{}
		}
		c.claims[s.key()] = &preparedClaim{claimState: s}
	}
	return nil
}
