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
	"skiff/internal/podstate"
)

// startError reports that containers could not be started; their status has the reason. progress reports that others were started.
type startError struct {
	error
	progress bool
}

// act carries out a plan.
func (w *worker) act(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, plan *Actions) error {
	k := w.k
	// Calls to the runtime are completed even if the pod must terminate; only waiting is interrupted.
	uncancelled := context.WithoutCancel(ctx)
	if plan.NewSandbox && plan.Sandbox != "" {
		k.podEvent(pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	if plan.KillPod {
		if err := k.killPod(uncancelled, pod, runtime, nil); err != nil {
			return err
		}
		if !plan.NewSandbox {
			return nil
		}
		for i := range pod.Spec.InitContainers {
			for _, c := range runtime.Containers {
				if c.Name == pod.Spec.InitContainers[i].Name {
					_ = k.removeContainer(uncancelled, c.ID) // retried by housekeeping
				}
			}
		}
	}
	for _, kill := range plan.Kill {
		stop := containerStop{container: find(runtime, kill.ID), message: kill.Message, reason: kill.Reason}
		if err := k.killContainer(ctx, pod, runtime, stop); err != nil {
			return err
		}
	}
	if err := w.reset(uncancelled, pod, runtime, plan.Reset); err != nil {
		return err
	}
	var config *cri.SandboxConfig
	if plan.NewSandbox || len(plan.Start) > 0 {
		var err error
		if config, err = w.sandboxConfig(pod, plan.Attempt); err != nil {
			if plan.NewSandbox {
				w.sandboxEvent(pod, err)
			}
			return wrapped("GeneratePodSandboxConfig for pod "+strconv.Quote(describe(pod))+" failed", err)
		}
	}
	if plan.NewSandbox {
		if err := k.prepareClaims(uncancelled, pod); err != nil {
			k.podEvent(pod, corev1.EventTypeWarning, "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: %v", err)
			return err
		}
		// Containers start in the next round, after the sandbox's addresses are in the pod's status.
		return w.newSandbox(ctx, pod, config)
	}
	if len(plan.Resize) > 0 || plan.ResizePod {
		w.applyResize(uncancelled, pod, runtime, plan)
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

// reset removes containers so that they are created again.
func (w *worker) reset(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, resets []Reset) error {
	zero := int64(0)
	for _, r := range resets {
		if r.Stop {
			stop := containerStop{container: find(runtime, r.ID), message: "killing", grace: &zero}
			if err := w.k.killContainer(ctx, pod, runtime, stop); err != nil {
				return err
			}
		}
		if err := w.k.removeContainer(ctx, r.ID); err != nil {
			return wrapped("remove container "+r.Name, err)
		}
	}
	return nil
}

// resolver returns the resolver configuration of the pod.
func (w *worker) resolver(pod *corev1.Pod) (*environment.DNSConfig, error) {
	k := w.k
	dns := k.DNS
	dns.NodeIPs = k.HostIPs()
	if k.HostDNS != nil {
		var err error
		if dns.Host, err = k.HostDNS(); err != nil {
			return nil, err
		}
	}
	dns.Warn = func(reason, message string, ofNode bool) {
		w.eventOnce("dns/"+reason+message, message, func() {
			if ofNode {
				k.Events.Event(k.Node(), corev1.EventTypeWarning, reason, message)
				return
			}
			k.podEvent(pod, corev1.EventTypeWarning, reason, "%s", message)
		})
	}
	return environment.DNS(pod, dns)
}

// sandboxConfig returns the configuration of the pod's sandbox.
func (w *worker) sandboxConfig(pod *corev1.Pod, attempt uint32) (*cri.SandboxConfig, error) {
	k := w.k
	resolver, err := w.resolver(pod)
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
		Host: k.hostForPod(pod.UID), Attempt: attempt, LogDirectory: cri.PodLogDirectory(k.LogsDir(), pod), CgroupParent: w.cgroup, DNS: resolver, Hostname: hostname,
		ExtraGroups: k.Volumes.SupplementalGroups(pod.UID), UserNamespace: user,
	})
}

// newSandbox creates the pod's sandbox when the semaphore allows.
func (w *worker) newSandbox(ctx context.Context, pod *corev1.Pod, config *cri.SandboxConfig) error {
	handler := ""
	if w.k.Handlers != nil {
		var err error
		if handler, err = w.k.Handlers.Handler(pod.Spec.RuntimeClassName); err != nil {
			return w.sandboxFailed(pod, err)
		}
	}
	release, err := w.k.sandboxes.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	_, err = w.k.Runtime.RunPodSandbox(context.WithoutCancel(ctx), config, handler)
	w.k.sandboxCheck.record(err)
	if err != nil {
		return w.sandboxFailed(pod, err)
	}
	return nil
}

func (w *worker) sandboxFailed(pod *corev1.Pod, err error) error {
	w.sandboxEvent(pod, err)
	return wrapped("create pod sandbox", err)
}

// sandboxEvent records the event about a pod without a sandbox.
func (w *worker) sandboxEvent(pod *corev1.Pod, err error) {
	w.mu.Lock()
	ending := w.ending()
	w.mu.Unlock()
	if !ending {
		w.k.podEvent(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: %v", err)
	}
}

// startAll starts containers in order. If an init container cannot be started, later containers are not started either.
func (w *worker) startAll(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, plan *Actions, config *cri.SandboxConfig) error {
	starting := startingPod{pod: pod, runtime: runtime, sandbox: plan.Sandbox, config: config}
	var failed error
	progress := false
	for _, start := range plan.Start {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c := start.Container
		if !start.TerminatedAt.IsZero() {
			w.restarts.restarted(restartKey(c), start.TerminatedAt, time.Now())
		}
		reason := w.startContainer(ctx, starting, start)
		w.recordContainerStart(pod, start, reason)
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

// startingPod is a pod whose containers are being started.
type startingPod struct {
	pod     *corev1.Pod
	runtime *cri.Pod
	// sandbox is the ID of the sandbox, config its configuration.
	sandbox string
	config  *cri.SandboxConfig
}

// startContainer starts one container. It returns the reason if that fails.
func (w *worker) startContainer(ctx context.Context, s startingPod, start Start) *kubeletstatus.Reason {
	k, pod, c := w.k, s.pod, start.Container
	fail := func(reason string, err error) *kubeletstatus.Reason {
		message := plainText(err)
		k.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", "Error: "+message)
		return &kubeletstatus.Reason{Reason: reason, Message: message}
	}
	ref, err := k.Images.Ensure(ctx, pod, c, s.config)
	if err != nil {
		var imageError interface {
			ImageReason() (reason, message string)
		}
		if errors.As(err, &imageError) {
			reason, message := imageError.ImageReason()
			k.containerEvent(pod, c, corev1.EventTypeWarning, "Failed", "Error: "+reason)
			return &kubeletstatus.Reason{Reason: reason, Message: message}
		}
		return fail("ErrImagePull", err)
	}
	settings := cri.ContainerSettings{Attempt: w.attempt(pod, s.runtime, c), ImageRef: ref}
	k.setCPUsAndMemory(&settings, pod, c)
	if start.Target != "" {
		found := s.runtime.Container(start.Target)
		if found == nil {
			return fail("CreateContainerConfigError", fmt.Errorf("unable to find target container %v", start.Target))
		}
		settings.TargetID = found.ID
	}
	config, release, err := w.containerConfig(ctx, s, c, settings)
	if release != nil {
		defer release()
	}
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	uncancelled := context.WithoutCancel(ctx)
	id, err := k.Runtime.CreateContainer(uncancelled, s.sandbox, config, s.config)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	w.setActuated(c)
	k.created(pod, c, id, settings.CPUs)
	k.containerEvent(pod, c, corev1.EventTypeNormal, "Created", "Container created")
	if err := k.Runtime.StartContainer(uncancelled, id); err != nil {
		return fail("RunContainerError", err)
	}
	k.linkLog(pod, c, id, settings.Attempt)
	k.containerEvent(pod, c, corev1.EventTypeNormal, "Started", "Container started")
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	message, err := k.hook(ctx, hookTarget{pod: pod, ips: s.runtime.IPs, container: c, id: id}, c.Lifecycle.PostStart)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	// The message is not in the event, because it may contain secrets.
	k.containerEvent(pod, c, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	stop := containerStop{container: &cri.Container{ID: id, Name: c.Name, State: cri.Running}, message: "FailedPostStartHook"}
	if err := k.killContainer(uncancelled, pod, s.runtime, stop); err != nil {
		k.Log.Warn("failed to stop container after failed postStart hook", "pod", describe(pod), "container", c.Name, "error", err)
	}
	return &kubeletstatus.Reason{Reason: "PostStartHookError", Message: message}
}

// plainText is the text of an error without the gRPC status.
func plainText(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// attempt is the number of earlier starts of a container. If the runtime has no container of that name, it is taken from the log files.
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

// containerConfig completes the settings of a container and returns its configuration. release is called when the container has been
// created, or could not be; it may be nil.
func (w *worker) containerConfig(
	ctx context.Context, s startingPod, c *corev1.Container, settings cri.ContainerSettings,
) (config *cri.ContainerConfig, release func(), err error) {
	k, pod := w.k, s.pod
	var fromPlugins devices.RunContainerOptions
	if k.Devices != nil {
		if fromPlugins, err = k.Devices.Prepare(ctx, pod, c); err != nil {
			return nil, nil, err
		}
	}
	if k.ResourceClaims != nil {
		prepared, err := k.ResourceClaims.CDIDevices(pod, c)
		if err != nil {
			return nil, nil, err
		}
		fromPlugins.CDI = append(prepared, fromPlugins.CDI...)
	}
	hostIPs := k.HostIPs()
	sorted := kubeletstatus.SortIPs(s.runtime.IPs, hostIPs)
	if pod.Spec.HostNetwork {
		sorted = hostIPs
	}
	env, err := environment.Of(environment.Input{Pod: pod, Container: c, Node: k.Node(), PodIPs: sorted, HostIPs: hostIPs, Sources: sources{k, pod}})
	if err != nil {
		return nil, nil, err
	}
	mounts, release, err := k.Volumes.Mounts(pod, c, env)
	if err != nil {
		return nil, release, err
	}
	fixed, err := k.kubeletMounts(pod, c, sorted)
	if err != nil {
		return nil, release, err
	}
	blocks, err := k.Volumes.Devices(pod, c)
	if err != nil {
		return nil, release, err
	}
	image, err := k.Runtime.ImageStatus(ctx, cri.ImageSpec{Image: settings.ImageRef, UserSpecifiedImage: c.Image})
	if err != nil {
		return nil, release, wrapped("get image status", err)
	}
	user, err := k.userNamespace(pod)
	if err != nil {
		return nil, release, err
	}
	settings.Host, settings.Env, settings.Mounts = k.hostForContainer(pod.UID, c.Name), append(fromPlugins.Env, env...), slices.Concat(fromPlugins.Mounts, mounts, fixed)
	settings.Devices, settings.CDIDevices, settings.Annotations = append(fromPlugins.Devices, blocks...), fromPlugins.CDI, fromPlugins.Annotations
	settings.ExtraGroups, settings.UserNamespace = k.Volumes.SupplementalGroups(pod.UID), user
	if image != nil {
		settings.ImageUID, settings.ImageUser = image.UID, image.Username
	}
	if err := os.MkdirAll(filepath.Join(cri.PodLogDirectory(k.LogsDir(), pod), c.Name), 0o755); err != nil {
		return nil, release, wrapped("create log directory", err)
	}
	config, err = cri.NewContainerConfig(pod, c, settings)
	return config, release, err
}

// sources provides the sources of a pod's environment variables.
type sources struct {
	*Kubelet
	pod *corev1.Pod
}

func (s sources) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	return s.Objects.ConfigMap(namespace, name)
}
func (s sources) Secret(namespace, name string) (*corev1.Secret, error) {
	return s.Objects.Secret(namespace, name)
}

// Services are those of a namespace. A static pod starts without them if they have not been listed: it may be the API server.
func (s sources) Services(namespace string) ([]*corev1.Service, error) {
	services, err := s.Kubelet.Services.List(namespace)
	if err != nil && podstate.IsStatic(s.pod) {
		return nil, nil
	}
	return services, err
}

func (s sources) Service(namespace, name string) (*corev1.Service, error) {
	service, err := s.Kubelet.Services.Get(namespace, name)
	if err != nil && podstate.IsStatic(s.pod) {
		return nil, nil
	}
	return service, err
}

func (s sources) File(pod *corev1.Pod, volume, path string) ([]byte, error) {
	return s.Volumes.ReadFile(pod, volume, path)
}
