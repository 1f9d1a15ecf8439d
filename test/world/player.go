package world

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/podstate"
)

// A pod with the label PlayLabel behaves as its value says, regardless of Chaos.
const (
	PlayLabel = "play"
	PlayFail  = "fail" // fails at once
	PlayEnd   = "end"  // succeeds at once
)

// Play creates nodes n0, n1, … in zones 0 and 1, and acts as scheduler and kubelet: it binds pods to nodes, lets them
// start, fail or succeed, and removes deleted ones.
func (w *World) Play(nodes int) {
	w.T.Helper()
	w.nodes = nodes
	for i := range nodes {
		Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"zone": fmt.Sprint(i % 2), corev1.LabelHostname: fmt.Sprint("n", i)}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
				Addresses:   []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("192.0.2.", i+1)}},
			}})
	}
	informers := client.NewInformers(w.Client)
	pods := client.InformerFor[*corev1.Pod](informers)
	changed := make(chan *corev1.Pod, 10000)
	enqueue := func(pod *corev1.Pod) { changed <- pod }
	if err := pods.AddEventHandler(enqueue, func(_, pod *corev1.Pod) { enqueue(pod) }, nil); err != nil {
		w.T.Fatal(err)
	}
	go func() { _ = informers.Run(w.Ctx) }()
	go func() {
		for {
			select {
			case <-w.Ctx.Done():
				return
			case pod := <-changed:
				time.Sleep(time.Millisecond)
				w.playPod(pod)
			}
		}
	}()
}

// Chaos sets the probability that pods fail instead of becoming ready, and that they succeed after running.
func (w *World) Chaos(failing, ending float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing, w.ending = failing, ending
}

// Nudge advances running pods: otherwise a pod only advances when it changes.
func (w *World) Nudge() {
	for _, pod := range List[*corev1.Pod](w) {
		w.playPod(pod)
	}
}

// playPod advances a pod by one step.
func (w *World) playPod(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := podstate.IsTerminal(pod)
	leaving := pod.DeletionTimestamp != nil
	var err error
	switch {
	case leaving && !ended:
		err = w.report(pod, corev1.PodFailed)
	case leaving && *pod.DeletionGracePeriodSeconds > 0:
		err = client.For[*corev1.Pod](w.Client).Delete(w.Ctx, pod.Namespace, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case leaving || ended:
		return
	case pod.Spec.NodeName == "":
		err = w.bind(pod)
	case pod.Status.Phase == corev1.PodPending && (pod.Labels[PlayLabel] == PlayFail || w.luck.Float64() < w.failing):
		err = w.report(pod, corev1.PodFailed)
	case pod.Status.Phase == corev1.PodPending:
		err = w.report(pod, corev1.PodRunning)
	case pod.Labels[PlayLabel] == PlayEnd || w.luck.Float64() < w.ending:
		err = w.report(pod, corev1.PodSucceeded)
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && w.Ctx.Err() == nil {
		w.T.Errorf("play pod %s: %v", pod.Name, err)
	}
}

// report updates the status of a pod.
func (w *World) report(pod *corev1.Pod, phase corev1.PodPhase) error {
	c := pod.DeepCopy()
	if c.Status.StartTime == nil {
		c.Status.StartTime = new(metav1.Now())
	}
	if phase == corev1.PodRunning {
		w.played++
		c.Status.PodIP = fmt.Sprintf("10.1.%d.%d", w.played>>8&255, w.played&255)
		c.Status.PodIPs = []corev1.PodIP{{IP: c.Status.PodIP}}
		c.Status.Conditions = append(c.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	} else {
		c.Status.Conditions = nil
	}
	c.Status.Phase = phase
	_, err := client.For[*corev1.Pod](w.Client).UpdateStatus(w.Ctx, c)
	return err
}

// bind binds a pod to the node it requires, or to any.
func (w *World) bind(pod *corev1.Pod) error {
	node := fmt.Sprint("n", w.luck.IntN(w.nodes))
	if target := targetNode(pod); target != "" {
		node = target
	}
	return client.For[*corev1.Pod](w.Client).CreateSubresource(w.Ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, "binding", &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, nil)
}

// targetNode returns the node a daemon pod is pinned to.
func targetNode(pod *corev1.Pod) string {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
