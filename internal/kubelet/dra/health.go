package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"skiff/internal/atomicfile"
)

const (
	// healthName is upstream's name of the file in the kubelet's directory.
	healthName = "dra_health_state"
	// healthTimeout is the time after which a report no longer counts, unless the driver chose another.
	healthTimeout = 30 * time.Second
	// maxDevicesPerDriver bounds the devices whose health is kept for one driver. Reports are not checked against ResourceSlices.
	maxDevicesPerDriver = 16384
)

// deviceHealth is what drivers have reported about their devices.
type deviceHealth struct {
	path string
	log  *slog.Logger

	mu sync.Mutex
	// drivers is the stored state, in upstream's format.
	drivers map[string]driverHealth
}

type driverHealth struct {
	// Devices are by "<pool>/<device>".
	Devices map[string]reportedHealth
}

type reportedHealth struct {
	PoolName           string
	DeviceName         string
	Health             corev1.ResourceHealthStatus
	LastUpdated        time.Time
	HealthCheckTimeout time.Duration
	Message            string
}

// newDeviceHealth reads the stored health. Without it the health of devices is unknown until the drivers report again.
func newDeviceHealth(dir string, log *slog.Logger) *deviceHealth {
	h := &deviceHealth{path: filepath.Join(dir, healthName), log: log, drivers: map[string]driverHealth{}}
	text, err := os.ReadFile(h.path)
	if err == nil {
		err = json.Unmarshal(text, &h.drivers)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.drivers = map[string]driverHealth{}
		log.Warn("failed to read the health of DRA devices", "error", err)
	}
	return h
}

// of returns the health of a device. A report that is too old does not count.
func (h *deviceHealth) of(d Device, now time.Time) (health corev1.ResourceHealthStatus, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reported, ok := h.drivers[d.Driver].Devices[d.Pool+"/"+d.Name]
	if !ok || reported.isStale(now) {
		return corev1.ResourceHealthStatusUnknown, ""
	}
	return reported.Health, reported.Message
}

func (r reportedHealth) isStale(now time.Time) bool {
	timeout := r.HealthCheckTimeout
	if timeout == 0 {
		timeout = healthTimeout
	}
	return now.Sub(r.LastUpdated) > timeout
}

// update stores a report of a driver and returns the devices that changed, as "<pool>/<device>". Devices that are not in the report are
// forgotten when their last one is too old.
func (h *deviceHealth) update(driver string, report []reportedHealth, now time.Time) (changed map[string]bool) {
	changed = map[string]bool{}
	h.mu.Lock()
	defer h.mu.Unlock()
	devices := h.drivers[driver].Devices
	if devices == nil {
		devices = map[string]reportedHealth{}
		h.drivers[driver] = driverHealth{Devices: devices}
	}
	isReported, ignored, forgotten := map[string]bool{}, 0, false
	for _, r := range report {
		r.LastUpdated = now
		key := r.PoolName + "/" + r.DeviceName
		isReported[key] = true
		old, known := devices[key]
		if !known && len(devices) >= maxDevicesPerDriver {
			ignored++
			continue
		}
		if !known || old.Health != r.Health || old.Message != r.Message || old.HealthCheckTimeout != r.HealthCheckTimeout {
			changed[key] = true
		}
		devices[key] = r
	}
	for key, r := range devices {
		if !isReported[key] && r.isStale(now) {
			delete(devices, key)
			forgotten = true
			if r.Health != corev1.ResourceHealthStatusUnknown {
				changed[key] = true
			}
		}
	}
	if ignored > 0 {
		h.log.Warn("ignored health of DRA devices beyond the limit per driver", "driver", driver, "limit", maxDevicesPerDriver, "ignored", ignored)
	}
	if len(changed) > 0 || forgotten {
		h.save()
	}
	return changed
}

// forget removes what a driver has reported.
func (h *deviceHealth) forget(driver string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.drivers[driver]; known {
		delete(h.drivers, driver)
		h.save()
	}
}

// save writes the file. If that fails, the health is unknown after a restart. The caller holds mu.
func (h *deviceHealth) save() {
	text, err := json.Marshal(h.drivers)
	if err == nil {
		err = atomicfile.Write(h.path, text, 0o600)
	}
	if err != nil {
		h.log.Warn("failed to write the health of DRA devices", "error", err)
	}
}

// watchHealth stores the reports of a driver until the stream ends, and syncs the pods whose devices changed.
func (c *Claims) watchHealth(driver string, stream healthpb.DRAResourceHealth_NodeWatchResourcesClient) error {
	defer c.health.forget(driver)
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		report := make([]reportedHealth, 0, len(response.GetDevices()))
		for _, d := range response.GetDevices() {
			report = append(report, readReport(d))
		}
		for uid := range c.podsWith(driver, c.health.update(driver, report, time.Now())) {
			c.PodChanged(uid)
		}
	}
}

// readReport reads the report about one device. A time-out that is not positive means the default.
func readReport(d *healthpb.DeviceHealth) reportedHealth {
	health := corev1.ResourceHealthStatusUnknown
	switch d.GetHealth() {
	case healthpb.HealthStatus_HEALTHY:
		health = corev1.ResourceHealthStatusHealthy
	case healthpb.HealthStatus_UNHEALTHY:
		health = corev1.ResourceHealthStatusUnhealthy
	}
	timeout := healthTimeout
	if seconds := d.GetHealthCheckTimeoutSeconds(); seconds > 0 {
		timeout = time.Duration(seconds) * time.Second
	}
	message := d.GetMessage()
	if len(message) > corev1.ResourceHealthMessageMaxLength {
		message = strings.ToValidUTF8(message[:corev1.ResourceHealthMessageMaxLength-3], "") + "..."
	}
	return reportedHealth{PoolName: d.GetDevice().GetPoolName(), DeviceName: d.GetDevice().GetDeviceName(), Health: health, HealthCheckTimeout: timeout, Message: message}
}

// podsWith returns the pods with one of the devices of a driver.
func (c *Claims) podsWith(driver string, devices map[string]bool) map[types.UID]bool {
	pods := map[types.UID]bool{}
	if len(devices) == 0 {
		return pods
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, claim := range c.claims {
		for _, d := range claim.DriverState[driver].Devices {
			if devices[d.PoolName+"/"+d.DeviceName] {
				for uid := range claim.PodUIDs {
					pods[uid] = true
				}
			}
		}
	}
	return pods
}

// Health returns the health of the devices of a container's claims, by claim and request.
func (c *Claims) Health(pod *corev1.Pod, container *corev1.Container) (all []corev1.ResourceStatus) {
	now := time.Now()
	for _, used := range container.Resources.Claims {
		devices := c.devicesFor(pod, used)
		if len(devices) == 0 {
			continue
		}
		s := corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + used.Name)}
		if used.Request != "" {
			s.Name += corev1.ResourceName("/" + used.Request)
		}
		seen := map[corev1.ResourceID]bool{}
		for _, d := range devices {
			id := corev1.ResourceID(fmt.Sprintf("%s/%s/%s", d.Driver, d.Pool, d.Name))
			if len(d.CDIDeviceIDs) > 0 {
				id = corev1.ResourceID(d.CDIDeviceIDs[0])
			}
			if seen[id] {
				continue
			}
			seen[id] = true
			one := corev1.ResourceHealth{ResourceID: id}
			var message string
			if one.Health, message = c.health.of(d, now); message != "" {
				one.Message = &message
			}
			s.Resources = append(s.Resources, one)
		}
		all = append(all, s)
	}
	return all
}

// devicesFor returns the devices of a claim, or of one request of it, that a container uses.
func (c *Claims) devicesFor(pod *corev1.Pod, used corev1.ResourceClaim) (selected []Device) {
	for i := range pod.Spec.ResourceClaims {
		if pod.Spec.ResourceClaims[i].Name != used.Name {
			continue
		}
		name, _, err := claimOf(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == "" {
			return nil
		}
		c.mu.Lock()
		devices, _ := c.devicesOf(types.NamespacedName{Namespace: pod.Namespace, Name: name})
		c.mu.Unlock()
		for _, d := range devices {
			if d.isFor(resourceclaim.BaseRequestRef(used.Request)) {
				selected = append(selected, d)
			}
		}
	}
	return selected
}
