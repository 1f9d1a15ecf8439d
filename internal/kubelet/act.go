package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/devices"
	"skiff/internal/kubelet/environment"
	kubeletstatus "skiff/internal/kubelet/status"
)

// startError says that containers could not be started. Their status tells why. progress says that others could.
type startError struct {
	error
	progress bool
}

// act carries out a plan.
func (w *worker) act(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, plan *Actions) error {
	k := w.k
	// What the runtime has begun it finishes, even if the pod is to end meanwhile: only waiting is cut short.
	firm := context.WithoutCancel(ctx)
	if plan.NewSandbox && plan.Sandbox != "" {
		k.podEvent(pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	if plan.KillPod {
		if err := k.killPod(firm, pod, runtime, nil); err != nil {
			return err
		}
		if !plan.NewSandbox {
			return nil
		}
		for i := range pod.Spec.InitContainers {
			for _, c := range runtime.Containers {
				if c.Name == pod.Spec.InitContainers[i].Name {
					_ = k.Runtime.RemoveContainer(firm, c.ID) // what stays is removed with the rest one day
				}
			}
		}
	}
	for _, kill := range plan.Kill {
		c := find(runtime, kill.ID)
		if err := k.killContainer(ctx, pod, runtime, c, kill.Message, kill.Why, nil, nil); err != nil {
			return err
		}
	}
	if err := w.reset(firm, pod, runtime, plan.Reset); err != nil {
		return err
	}
	var config *cri.SandboxConfig
	if plan.NewSandbox || len(plan.Start) > 0 {
		var err error
		if config, err = w.sandboxConfig(pod, plan.Attempt); err != nil {
			return wrapped("GeneratePodSandboxConfig for pod "+strconv.Quote(describe(pod))+" failed", err)
		}
	}
	if plan.NewSandbox {
		// The containers start with the next look, which shows the sandbox's addresses to everybody first.
		return w.newSandbox(ctx, pod, config)
	}
	if len(plan.Resize) > 0 || plan.ResizePod {
		w.applyResize(firm, pod, runtime, plan)
	}
	return w.startAll(ctx, pod, runtime, plan, config)
}

func find(runtime *cri.Pod, id string) *cri.Container {
	for _, c := range runtime.Containers {
		if c.ID == id {
			return c
		}
	}
	return &cri.Container{ID: id}
}

// reset removes containers so that they begin anew.
func (w *worker) reset(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, resets []Reset) error {
	zero := int64(0)
	for _, r := range resets {
		if r.Stop {
			if err := w.k.killContainer(ctx, pod, runtime, find(runtime, r.ID), "killing", killUnknown, &zero, nil); err != nil {
				return err
			}
		}
		if err := w.k.Runtime.RemoveContainer(ctx, r.ID); err != nil && !cri.NotFound(err) {
			return wrapped("remove container "+r.Name, err)
		}
	}
	return nil
}

// sandboxConfig says what sandbox the pod wants.
func (w *worker) sandboxConfig(pod *corev1.Pod, attempt uint32) (*cri.SandboxConfig, error) {
	k := w.k
	dns := k.DNS
	dns.NodeIPs = k.HostIPs()
	dns.Warn = func(reason, message string, ofNode bool) {
		w.tellOnce("dns/"+reason+message, message, func() {
			if ofNode {
				k.Events.Event(k.Node(), corev1.EventTypeWarning, reason, message)
				return
			}
			k.podEvent(pod, corev1.EventTypeWarning, reason, "%s", message)
		})
	}
	resolver, err := environment.DNS(pod, dns)
	if err != nil {
		return nil, err
	}
	hostname, err := environment.KernelHostname(pod, k.DNS.ClusterDomain)
	if err != nil {
		return nil, err
	}
	user, err := k.userNamespace(pod)
	if err != nil {
		return nil, err
	}
	return cri.NewSandboxConfig(pod, cri.PodSettings{
		Host: k.Host, Attempt: attempt, LogDirectory: cri.PodLogDirectory(k.LogsDir(), pod), CgroupParent: w.cgroup, DNS: resolver, Hostname: hostname,
		ExtraGroups: k.Volumes.SupplementalGroups(pod.UID), UserNamespace: user,
	})
}

// newSandbox makes the pod's sandbox when its turn has come.
func (w *worker) newSandbox(ctx context.Context, pod *corev1.Pod, config *cri.SandboxConfig) error {
	handler := ""
	if w.k.Handlers != nil {
		var err error
		if handler, err = w.k.Handlers.Handler(pod.Spec.RuntimeClassName); err != nil {
			return w.sandboxFailed(pod, err)
		}
	}
	done, err := w.k.turns.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	if _, err := w.k.Runtime.RunPodSandbox(context.WithoutCancel(ctx), config, handler); err != nil {
		return w.sandboxFailed(pod, err)
	}
	return nil
}

func (w *worker) sandboxFailed(pod *corev1.Pod, err error) error {
	w.mu.Lock()
	ending := w.ending()
	w.mu.Unlock()
	if !ending {
		w.k.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
	}
	return wrapped("create pod sandbox", err)
}

// startAll starts containers in order. An init container that cannot be started holds back those behind it; others do not.
func (w *worker) startAll(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, plan *Actions, config *cri.SandboxConfig) error {
	var failed error
	progress := false
	for _, start := range plan.Start {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c := start.Container
		if !start.Ended.IsZero() {
			w.restarts.restarted(restartKey(c), start.Ended, time.Now())
		}
		reason := w.startContainer(ctx, pod, runtime, start, plan.Sandbox, config)
		w.countContainer(start.Kind, reason)
		if reason == nil {
			delete(w.failed, c.Name)
			progress = true
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.failed[c.Name] = *reason
		failed = fmt.Errorf("start container %s: %s: %s", c.Name, reason.Reason, reason.Message)
		if start.Kind == container.Init && !container.IsSidecar(c) {
			break
		}
	}
	if failed != nil {
		return &startError{failed, progress}
	}
	return nil
}

// startContainer starts one container, and says why not if it cannot.
func (w *worker) startContainer(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, start Start, sandbox string, sandboxConfig *cri.SandboxConfig) *kubeletstatus.Reason {
	k, c, ips := w.k, start.Container, runtime.IPs
	fail := func(reason string, err error) *kubeletstatus.Reason {
		message := plainText(err)
		k.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", "Error: "+message)
		return &kubeletstatus.Reason{Reason: reason, Message: message}
	}
	ref, err := k.Images.Ensure(ctx, pod, c, sandboxConfig)
	if err != nil {
		var why interface {
			ImageReason() (reason, message string)
		}
		if errors.As(err, &why) {
			reason, message := why.ImageReason()
			k.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", "Error: "+reason)
			return &kubeletstatus.Reason{Reason: reason, Message: message}
		}
		return fail("ErrImagePull", err)
	}
	target := ""
	if start.Target != "" {
		found := runtime.Container(start.Target)
		if found == nil {
			return fail("CreateContainerConfigError", fmt.Errorf("unable to find target container %v", start.Target))
		}
		target = found.ID
	}
	attempt := w.attempt(pod, runtime, c)
	config, release, err := w.containerConfig(ctx, pod, c, ref, attempt, target, ips)
	if release != nil {
		defer release()
	}
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	firm := context.WithoutCancel(ctx)
	id, err := k.Runtime.CreateContainer(firm, sandbox, config, sandboxConfig)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	w.setActuated(c)
	k.containerEvent(pod, c, corev1.EventTypeNormal, "Created", "Container created")
	if err := k.Runtime.StartContainer(firm, id); err != nil {
		return fail("RunContainerError", err)
	}
	k.containerEvent(pod, c, corev1.EventTypeNormal, "Started", "Container started")
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	message, err := k.hook(ctx, pod, ips, c, id, c.Lifecycle.PostStart)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	// The message stays out of the event: it may tell secrets.
	k.containerEvent(pod, c, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	started := &cri.Container{ID: id, Name: c.Name, State: cri.Running}
	if err := k.killContainer(firm, pod, runtime, started, "FailedPostStartHook", killUnknown, nil, nil); err != nil {
		k.Log.Warn("a container whose postStart hook failed could not be stopped", "pod", describe(pod), "container", c.Name, "error", err)
	}
	return &kubeletstatus.Reason{Reason: "PostStartHookError", Message: message}
}

// plainText is the text of an error without what gRPC adds.
func plainText(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// attempt counts the runs of a container. When the runtime has forgotten them all, its logs and its status still know.
func (w *worker) attempt(pod *corev1.Pod, runtime *cri.Pod, c *corev1.Container) uint32 {
	if found := runtime.Container(c.Name); found != nil {
		return uint32(found.RestartCount) + 1
	}
	next := 0
	files, err := os.ReadDir(filepath.Join(cri.PodLogDirectory(w.k.LogsDir(), pod), c.Name))
	if err != nil {
		return 0
	}
	for _, file := range files {
		number, _, _ := strings.Cut(file.Name(), ".")
		if n, err := strconv.Atoi(number); err == nil {
			next = max(next, n+1)
		}
	}
	return uint32(next)
}

// containerConfig says what container is to be made. release frees what is only needed until it is made.
func (w *worker) containerConfig(ctx context.Context, pod *corev1.Pod, c *corev1.Container, ref string, attempt uint32, target string, ips []string) (*cri.ContainerConfig, func(), error) {
	k := w.k
	var given devices.RunContainerOptions
	if k.Devices != nil {
		var err error
		if given, err = k.Devices.Prepare(ctx, pod, c); err != nil {
			return nil, nil, err
		}
	}
	hostIPs := k.HostIPs()
	sorted := kubeletstatus.SortIPs(ips, hostIPs)
	if pod.Spec.HostNetwork {
		sorted = hostIPs
	}
	env, err := environment.Of(environment.Input{Pod: pod, Container: c, Node: k.Node(), PodIPs: sorted, HostIPs: hostIPs, Sources: sources{k}})
	if err != nil {
		return nil, nil, err
	}
	mounts, release, err := k.Volumes.Mounts(pod, c, env)
	if err != nil {
		return nil, release, err
	}
	own, err := k.ownMounts(pod, c, sorted)
	if err != nil {
		return nil, release, err
	}
	blocks, err := k.Volumes.Devices(pod, c)
	if err != nil {
		return nil, release, err
	}
	image, err := k.Runtime.ImageStatus(ctx, cri.ImageSpec{Image: ref, UserSpecifiedImage: c.Image})
	if err != nil {
		return nil, release, wrapped("read image", err)
	}
	user, err := k.userNamespace(pod)
	if err != nil {
		return nil, release, err
	}
	settings := cri.ContainerSettings{
		Host: k.Host, Attempt: attempt, Env: append(given.Env, env...), Mounts: slices.Concat(given.Mounts, mounts, own),
		Devices: append(given.Devices, blocks...), CDIDevices: given.CDI, Annotations: given.Annotations, ImageRef: ref, TargetID: target,
		ExtraGroups: k.Volumes.SupplementalGroups(pod.UID), UserNamespace: user,
	}
	if image != nil {
		settings.ImageUID, settings.ImageUser = image.UID, image.Username
	}
	if err := os.MkdirAll(filepath.Join(cri.PodLogDirectory(k.LogsDir(), pod), c.Name), 0o755); err != nil {
		return nil, release, wrapped("make log directory", err)
	}
	config, err := cri.NewContainerConfig(pod, c, settings)
	return config, release, err
}

// sources is where environment variables come from.
type sources struct{ *Kubelet }

func (s sources) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	return s.Objects.ConfigMap(namespace, name)
}
func (s sources) Secret(namespace, name string) (*corev1.Secret, error) {
	return s.Objects.Secret(namespace, name)
}
func (s sources) Services(namespace string) ([]*corev1.Service, error) {
	return s.Kubelet.Services(namespace)
}
func (s sources) File(pod *corev1.Pod, volume, path string) ([]byte, error) {
	return s.Volumes.ReadFile(pod, volume, path)
}
