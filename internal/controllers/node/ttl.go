package node

import (
	"fmt"
	"math"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// TTL annotates nodes with the time for which kubelets may cache ConfigMaps and Secrets: the more nodes, the longer.
var TTL = controller.Definition{
	Name: "ttl-controller", Aliases: []string{"ttl"}, Queue: "ttlcontroller", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &ttl{nodes: client.InformerFor[*corev1.Node](s.Informers)}
		enqueue := func(node *corev1.Node) { s.Enqueue(controller.KeyOf(node)) }
		resize := func(node *corev1.Node, by int) {
			if c.resize(by) {
				for _, each := range c.nodes.List("", nil) {
					enqueue(each)
				}
			}
			enqueue(node)
		}
		added, deleted := func(node *corev1.Node) { resize(node, 1) }, func(node *corev1.Node) { resize(node, -1) }
		counted, err := c.nodes.AddEventHandlerWithSync(added, func(_, node *corev1.Node) { enqueue(node) }, deleted)
		if err != nil {
			return nil, fmt.Errorf("watch nodes: %w", err)
		}
		return controller.AfterInitialEvents(s, counted, controller.NewSyncer(s, c)), nil
	},
}

// ttlSteps are the TTLs by cluster size. They overlap, so that adding and removing a node does not change all nodes each time.
var ttlSteps = []struct{ from, to, seconds int }{
	{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, math.MaxInt32, 300},
}

type ttl struct {
	nodes client.Informer[*corev1.Node]

	mu   sync.Mutex
	size int // number of nodes
	step int
}

// resize changes the number of nodes, selects the step for it, and reports whether that changed.
func (c *ttl) resize(by int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.step
	c.size += by
	size := c.size
	for size > ttlSteps[c.step].to && c.step < len(ttlSteps)-1 {
		c.step++
	}
	for size < ttlSteps[c.step].from && c.step > 0 {
		c.step--
	}
	return c.step != before
}

type ttlView struct {
	node    *corev1.Node
	seconds int
}

// Observe gathers a node and its desired TTL.
func (c *ttl) Observe(key controller.Key) (ttlView, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	node, ok := c.nodes.Get("", key.Name)
	return ttlView{node: node, seconds: ttlSteps[c.step].seconds}, ok
}

// Reconcile writes the annotation.
func (c *ttl) Reconcile(v ttlView) (plan controller.Plan) {
	want := strconv.Itoa(v.seconds)
	if current, ok := v.node.Annotations[corev1.ObjectTTLAnnotationKey]; !ok || current != want {
		plan.AddStep(controller.NewPatch(v.node, client.MergePatch,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, corev1.ObjectTTLAnnotationKey, want)).Ignoring(metav1.StatusReasonNotFound))
	}
	return plan
}
