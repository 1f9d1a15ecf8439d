package core

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// DefaultNodePortRange is the default of the server's configuration.
const DefaultNodePortRange = "30000-32767"

// nodePortAllocation is the name of the object whose bits are the allocated node ports.
const nodePortAllocation = "servicenodeports"

var (
	errPortAllocated = errors.New("provided port is already allocated")
	errNoChange      = errors.New("nothing to write")
)

// portLock avoids conflicts in the store between requests of one process, all but one of which would have to retry. It is
// not needed for safety: the store's compare and swap is.
var portLock sync.Mutex

// portMap is a range of ports with a bit for each allocated one.
type portMap struct {
	ports utilnet.PortRange
	taken *big.Int
}

func parsePortMap(stored *corev1.RangeAllocation) (*portMap, error) {
	ports, err := utilnet.ParsePortRange(stored.Range)
	if err != nil {
		return nil, fmt.Errorf("parse node port range %q: %w", stored.Range, err)
	}
	return &portMap{ports: *ports, taken: new(big.Int).SetBytes(stored.Data)}, nil
}

func (m *portMap) store(in *corev1.RangeAllocation) {
	in.Range, in.Data = m.ports.String(), m.taken.Bytes()
}

func (m *portMap) has(port int32) bool {
	return m.ports.Contains(int(port)) && m.taken.Bit(int(port)-m.ports.Base) == 1
}

func (m *portMap) set(port int32, taken bool) {
	if !m.ports.Contains(int(port)) {
		return
	}
	bit := uint(0)
	if taken {
		bit = 1
	}
	m.taken.SetBit(m.taken, int(port)-m.ports.Base, bit)
}

func (m *portMap) take(port int32) error {
	if !m.ports.Contains(int(port)) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", m.ports.String())
	}
	if m.has(port) {
		return errPortAllocated
	}
	m.set(port, true)
	return nil
}

// takeNext prefers the upper part of the range, so that the lower one stays free for services that choose their port.
func (m *portMap) takeNext() (int32, error) {
	static := 0
	if m.ports.Size > 16 {
		static = min(max(16, m.ports.Size/32), 128)
	}
	for _, band := range []struct{ from, count int }{{static, m.ports.Size - static}, {0, static}} {
		if band.count == 0 {
			continue
		}
		start := rand.IntN(band.count)
		for i := range band.count {
			port := int32(m.ports.Base + band.from + (start+i)%band.count)
			if !m.has(port) {
				m.set(port, true)
				return port, nil
			}
		}
	}
	return 0, errRangeFull
}

// ports allocates the service's node ports.
func (a *allocation) ports(old *corev1.Service) error {
	if !needsNodePort(a.service) {
		return nil
	}
	var draft *corev1.Service
	var taken []int32
	assign := func(m *portMap) error {
		// It may run several times, each time on the stored map.
		draft, taken = a.service.DeepCopy(), nil
		before := new(big.Int).Set(m.taken)
		if err := assignPorts(m, draft, old); err != nil {
			return err
		}
		for _, port := range heldPorts(draft).UnsortedList() {
			if m.has(port) && before.Bit(int(port)-m.ports.Base) == 0 {
				taken = append(taken, port)
			}
		}
		if len(taken) == 0 {
			return errNoChange
		}
		return nil
	}
	var err error
	if a.dryRun {
		err = tryPorts(a.ctx, a.client, assign)
	} else {
		err = changePorts(a.ctx, a.client, assign)
	}
	if err != nil {
		return err
	}
	a.service.Spec = draft.Spec
	if !a.dryRun {
		a.takenPorts = taken
	}
	return nil
}

func assignPorts(m *portMap, obj, old *corev1.Service) error {
	var err error
	if old == nil {
		err = assignNewPorts(m, obj)
	} else {
		err = assignChangedPorts(m, obj, old)
	}
	if err != nil || !needsHealthCheckPort(obj) || old != nil && needsHealthCheckPort(old) {
		return err
	}
	if port := obj.Spec.HealthCheckNodePort; port != 0 {
		if err := m.take(port); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", port, err))
		}
		return nil
	}
	port, err := m.takeNext()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %v", port, err))
	}
	obj.Spec.HealthCheckNodePort = port
	return nil
}

// assignNewPorts gives service ports of the same number but different protocols the same node port.
func assignNewPorts(m *portMap, obj *corev1.Service) error {
	shared := map[int32]int32{}
	for i := range obj.Spec.Ports {
		port := &obj.Spec.Ports[i]
		if port.NodePort == 0 && !usesNodePorts(obj) {
			continue
		}
		given := shared[port.Port]
		switch {
		case given != 0 && port.NodePort == 0:
			port.NodePort = given
		case given != 0 && port.NodePort == given:
		case given != 0:
			if err := m.take(port.NodePort); err != nil {
				return invalidPort(obj, i, port.NodePort, err)
			}
		default:
			wanted := requestedNodePort(obj.Spec.Ports, port.Port)
			if wanted != 0 {
				if err := m.take(wanted); err != nil {
					return invalidPort(obj, i, wanted, err)
				}
			} else {
				next, err := m.takeNext()
				if err != nil {
					return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
				}
				wanted = next
			}
			port.NodePort, shared[port.Port] = wanted, wanted
		}
	}
	return nil
}

func requestedNodePort(ports []corev1.ServicePort, number int32) int32 {
	for _, port := range ports {
		if port.Port == number && port.NodePort != 0 {
			return port.NodePort
		}
	}
	return 0
}

func assignChangedPorts(m *portMap, obj, old *corev1.Service) error {
	oldPorts := nodePorts(old)
	for i := range obj.Spec.Ports {
		port := &obj.Spec.Ports[i]
		switch {
		case port.NodePort == 0 && !usesNodePorts(obj):
		case port.NodePort == 0:
			next, err := m.takeNext()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
			}
			port.NodePort = next
		case !oldPorts.Has(port.NodePort):
			if err := m.take(port.NodePort); err != nil {
				return invalidPort(obj, i, port.NodePort, err)
			}
			oldPorts.Insert(port.NodePort)
		}
	}
	return nil
}

func invalidPort(obj *corev1.Service, i int, port int32, err error) error {
	return invalidService(obj, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port, err.Error()))
}

func releasePorts(ctx context.Context, client kind.Client, ports []int32) error {
	return changePorts(ctx, client, func(m *portMap) error {
		for _, port := range ports {
			m.set(port, false)
		}
		return nil
	})
}

// changePorts updates the stored map, and retries on conflict.
func changePorts(ctx context.Context, client kind.Client, change func(*portMap) error) error {
	portLock.Lock()
	defer portLock.Unlock()
	update := func() error {
		_, err := client.Update(ctx, RangeAllocation.GroupResource(), "", nodePortAllocation, func(obj kind.Object) error {
			stored := obj.(*corev1.RangeAllocation)
			m, err := parsePortMap(stored)
			if err != nil {
				return err
			}
			if err := change(m); err != nil {
				return err
			}
			m.store(stored)
			return nil
		})
		return err
	}
	err := update()
	if apierrors.IsNotFound(err) {
		if err := createPortMap(ctx, client, DefaultNodePortRange); err != nil {
			return err
		}
		err = update()
	}
	if errors.Is(err, errNoChange) {
		return nil
	}
	return err
}

// tryPorts is changePorts without storing the result.
func tryPorts(ctx context.Context, client kind.Client, change func(*portMap) error) error {
	m, err := readPortMap(ctx, client)
	if err != nil {
		return err
	}
	if err := change(m); !errors.Is(err, errNoChange) {
		return err
	}
	return nil
}

func readPortMap(ctx context.Context, client kind.Client) (*portMap, error) {
	obj, err := client.Get(ctx, RangeAllocation.GroupResource(), "", nodePortAllocation)
	if apierrors.IsNotFound(err) {
		return portsOfServices(ctx, client, DefaultNodePortRange)
	}
	if err != nil {
		return nil, fmt.Errorf("get node port allocation: %w", err)
	}
	return parsePortMap(obj.(*corev1.RangeAllocation))
}

// createPortMap creates the map from the existing services.
func createPortMap(ctx context.Context, client kind.Client, portRange string) error {
	m, err := portsOfServices(ctx, client, portRange)
	if err != nil {
		return err
	}
	stored := &corev1.RangeAllocation{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"},
		ObjectMeta: metav1.ObjectMeta{Name: nodePortAllocation},
	}
	m.store(stored)
	if _, err := client.Create(ctx, RangeAllocation.GroupResource(), stored); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node port allocation: %w", err)
	}
	return nil
}

func portsOfServices(ctx context.Context, client kind.Client, portRange string) (*portMap, error) {
	m, err := parsePortMap(&corev1.RangeAllocation{Range: portRange})
	if err != nil {
		return nil, err
	}
	objs, err := client.List(ctx, services, "")
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	for _, obj := range objs {
		for port := range heldPorts(obj.(*corev1.Service)) {
			m.set(port, true)
		}
	}
	return m, nil
}
