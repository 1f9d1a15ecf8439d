package workload

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

var deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Deployment rolls pods from one template to the next, with a ReplicaSet for each.
var Deployment = controller.Definition{
	Name: "deployment-controller", Aliases: []string{"deployment"}, Queue: "deployment", Workers: 5,
	New: newDeployments,
}

type deployments struct {
	deployments client.Informer[*appsv1.Deployment]
	sets        controller.Dependents[*appsv1.ReplicaSet]
	pods        controller.Dependents[*corev1.Pod]
}

func newDeployments(s *controller.Setup) (controller.Syncer, error) {
	c := &deployments{deployments: client.InformerFor[*appsv1.Deployment](s.Informers)}
	var err error
	if c.sets, err = controller.DependentsOf[*appsv1.ReplicaSet](s); err != nil {
		return nil, err
	}
	if c.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
		return nil, err
	}
	if err := controller.WatchPrimary[*appsv1.Deployment](s); err != nil {
		return nil, err
	}
	selector := func(d *appsv1.Deployment) (labels.Selector, error) {
		return metav1.LabelSelectorAsSelector(d.Spec.Selector)
	}
	if err := controller.WatchDependents[*appsv1.ReplicaSet](s, deploymentKind, selector); err != nil {
		return nil, err
	}
	// A Recreate deployment continues when the last old pod has terminated.
	enqueueRecreate := func(pod *corev1.Pod) {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil || ref.Kind != replicaSetKind.Kind {
			return
		}
		set, ok := c.sets.Get(pod.Namespace, ref.Name)
		if !ok || set.UID != ref.UID {
			return
		}
		owner := metav1.GetControllerOfNoCopy(set)
		if owner == nil || owner.Kind != deploymentKind.Kind {
			return
		}
		if d, ok := c.deployments.Get(pod.Namespace, owner.Name); ok && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			s.Enqueue(controller.KeyOf(d))
		}
	}
	onPodUpdate := func(old, pod *corev1.Pod) {
		if podstate.IsTerminal(pod) && !podstate.IsTerminal(old) {
			enqueueRecreate(pod)
		}
	}
	if err := client.InformerFor[*corev1.Pod](s.Informers).AddEventHandler(nil, onPodUpdate, enqueueRecreate); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return controller.NewSyncer(s, c), nil
}

// deploymentView is the observed state of one deployment.
type deploymentView struct {
	deployment *appsv1.Deployment
	sets       []*appsv1.ReplicaSet // those it controls and the orphans of its namespace
	// setOfSameName is an existing set, of any owner, with the name of the next set.
	setOfSameName *appsv1.ReplicaSet
	// pods of the sets, only for the Recreate strategy.
	pods map[types.UID][]*corev1.Pod
	now  time.Time
}

// Observe gathers the deployment and its sets.
func (c *deployments) Observe(key controller.Key) (deploymentView, bool) {
	d, ok := c.deployments.Get(key.Namespace, key.Name)
	if !ok {
		return deploymentView{}, false
	}
	v := deploymentView{deployment: d, sets: c.sets.Claimable(d, selectorOf(d.Spec.Selector)), now: time.Now()}
	v.setOfSameName, _ = c.sets.Get(d.Namespace, replicaSetName(d.Name, templateHash(&d.Spec.Template, d.Status.CollisionCount)))
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		v.pods = map[types.UID][]*corev1.Pod{}
		for _, set := range v.sets {
			v.pods[set.UID] = c.pods.ControlledBy(set.UID)
		}
	}
	return v, true
}

// Reconcile decides the next step of a rollout.
func (c *deployments) Reconcile(v deploymentView) controller.Plan { return v.reconcile() }

func (v deploymentView) reconcile() controller.Plan {
	var plan controller.Plan
	d := v.deployment
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return plan // rejected by validation
	}
	if selector.Empty() {
		plan.Events = []controller.Event{{Object: d, Type: corev1.EventTypeWarning, Reason: "SelectingAll",
			Message: "This deployment is selecting all pods. A non-empty selector is required."}}
		plan.Status = func(controller.ApplyResult) kind.Object {
			if d.Status.ObservedGeneration >= d.Generation {
				return nil
			}
			changed := *d
			changed.Status.ObservedGeneration = d.Generation
			return &changed
		}
		return plan
	}
	matches := func(set *appsv1.ReplicaSet) bool { return selector.Matches(labels.Set(set.Labels)) }
	r := newRollout(v, &plan, controller.Claim(&plan, controller.Claimer{Owner: d, Kind: deploymentKind}, matches, v.sets))
	switch to, wanted := rollbackTo(d); {
	case d.DeletionTimestamp != nil:
		r.updateRevision()
		r.planStatus(false)
	case d.Spec.Paused:
		r.updatePausedCondition()
		r.updateRevision()
		r.scale()
		if !wanted {
			r.cleanUpHistory()
		}
		r.planStatus(false)
	case wanted:
		r.updatePausedCondition()
		r.rollback(to)
	case r.isScalingEvent() && r.canScale():
		r.updatePausedCondition()
		r.updateRevision()
		r.scale()
		r.planStatus(false)
	default:
		r.updatePausedCondition()
		if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			r.recreate()
		} else {
			r.rollingUpdate()
		}
	}
	plan.AddStep(r.updates()...)
	return plan
}

// rollout is the state of one sync of a deployment. Sets are changed in copies; updates turns them into writes.
type rollout struct {
	deploymentView
	plan    *controller.Plan
	current *appsv1.ReplicaSet   // the set of the deployment's template, nil before it is created
	old     []*appsv1.ReplicaSet // all others, the oldest first
	changed map[types.UID]*appsv1.ReplicaSet
	// The new status.
	conditions []appsv1.DeploymentCondition
	revision   string
	collisions *int32
}

func newRollout(v deploymentView, plan *controller.Plan, sets []*appsv1.ReplicaSet) *rollout {
	r := &rollout{deploymentView: v, plan: plan, changed: map[types.UID]*appsv1.ReplicaSet{},
		conditions: slices.Clone(v.deployment.Status.Conditions),
		revision:   v.deployment.Annotations[revisionAnnotation], collisions: v.deployment.Status.CollisionCount}
	slices.SortFunc(sets, olderSetFirst)
	for _, set := range sets {
		// If two sets have the template, the older one is used.
		if r.current == nil && sameTemplate(&set.Spec.Template, &v.deployment.Spec.Template) {
			r.current = set
		} else {
			r.old = append(r.old, set)
		}
	}
	if n := v.setOfSameName; r.current == nil && n != nil && metav1.IsControlledBy(n, v.deployment) && sameTemplate(&n.Spec.Template, &v.deployment.Spec.Template) {
		r.current = n
	}
	return r
}

func olderSetFirst(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// all returns the old sets and the current one.
func (r *rollout) all() []*appsv1.ReplicaSet {
	if r.current == nil {
		return r.old
	}
	return append(slices.Clone(r.old), r.current)
}

func (r *rollout) desiredReplicas() int32 { return ptr.Deref(r.deployment.Spec.Replicas, 1) }

// effective returns a set with the changes of this sync.
func (r *rollout) effective(set *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	if c := r.changed[set.UID]; c != nil {
		return c
	}
	return set
}

// replicasOf is the number of replicas of a set, with the changes of this sync.
func (r *rollout) replicasOf(set *appsv1.ReplicaSet) int32 {
	return ptr.Deref(r.effective(set).Spec.Replicas, 1)
}

func (r *rollout) totalReplicas(sets []*appsv1.ReplicaSet) (n int32) {
	for _, set := range sets {
		n += r.replicasOf(set)
	}
	return n
}

// activeSets returns the sets that are scaled above zero.
func (r *rollout) activeSets(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return filter(sets, func(set *appsv1.ReplicaSet) bool { return r.replicasOf(set) > 0 })
}

// mutableCopy returns the copy of a set that this sync writes.
func (r *rollout) mutableCopy(set *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	c := r.changed[set.UID]
	if c == nil {
		c = set.DeepCopy()
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		r.changed[set.UID] = c
	}
	return c
}

// scaleSet scales a set. It reports whether the number of replicas changes.
func (r *rollout) scaleSet(set *appsv1.ReplicaSet, size int32) bool {
	if r.replicasOf(set) == size {
		return false
	}
	c := r.mutableCopy(set)
	c.Spec.Replicas = &size
	r.annotateReplicas(c)
	return true
}

// annotateReplicas stores the desired and maximum replicas of the deployment in a set.
func (r *rollout) annotateReplicas(set *appsv1.ReplicaSet) {
	set.Annotations[desiredReplicasAnnotation] = strconv.Itoa(int(r.desiredReplicas()))
	set.Annotations[maxReplicasAnnotation] = strconv.Itoa(int(r.desiredReplicas() + r.maxSurge()))
}

// updates returns the writes of the changed sets, the oldest set first.
func (r *rollout) updates() (writes []controller.Write) {
	for _, set := range r.all() {
		c := r.changed[set.UID]
		if c == nil || apiequality.Semantic.DeepEqual(set, c) {
			continue
		}
		write := controller.NewUpdate(c)
		if from, to := ptr.Deref(set.Spec.Replicas, 1), ptr.Deref(c.Spec.Replicas, 1); from != to {
			write = write.OnSuccess(r.scalingEvent(set.Name, from, to))
		}
		writes = append(writes, write)
	}
	return writes
}

func (r *rollout) scalingEvent(name string, from, to int32) controller.Event {
	direction := "up"
	if to < from {
		direction = "down"
	}
	return controller.Event{Object: r.deployment, Type: corev1.EventTypeNormal, Reason: "ScalingReplicaSet",
		Message: fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, name, from, to)}
}

// maxSurge is the number of pods allowed above the desired replicas.
func (r *rollout) maxSurge() int32 { surge, _ := resolveFenceposts(r.deployment); return surge }

// maxUnavailable is the number of desired replicas that may be unavailable.
func (r *rollout) maxUnavailable() int32 {
	if r.desiredReplicas() == 0 {
		return 0
	}
	_, unavailable := resolveFenceposts(r.deployment)
	return min(unavailable, r.desiredReplicas())
}

// resolveFenceposts resolves maxSurge and maxUnavailable. If both are zero, the rollout could not progress, and maxUnavailable is
// one.
func resolveFenceposts(d *appsv1.Deployment) (surge, unavailable int32) {
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return 0, 0
	}
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		surge = scaledValue(rolling.MaxSurge, ptr.Deref(d.Spec.Replicas, 1), true)
		unavailable = scaledValue(rolling.MaxUnavailable, ptr.Deref(d.Spec.Replicas, 1), false)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// rollingUpdate is one step of a rolling update: scale up the new set as far as maxSurge allows, else scale down old sets as far
// as maxUnavailable allows.
func (r *rollout) rollingUpdate() {
	if !r.ensureCurrentSet() {
		return
	}
	defer r.planStatus(true)
	if r.scaleUpCurrent() || r.scaleDownOld() {
		return
	}
	if complete(r.deployment, &r.deployment.Status) {
		r.cleanUpHistory()
	}
}

func (r *rollout) scaleUpCurrent() bool {
	if r.replicasOf(r.current) >= r.desiredReplicas() {
		return r.scaleSet(r.current, r.desiredReplicas())
	}
	return r.scaleSet(r.current, r.newSetReplicas(r.replicasOf(r.current), r.totalReplicas(r.all())))
}

// newSetReplicas is the size to which the current set may be scaled, given its size and the total number of pods.
func (r *rollout) newSetReplicas(size, total int32) int32 {
	if r.deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return r.desiredReplicas()
	}
	surge := int32(0)
	if rolling := r.deployment.Spec.Strategy.RollingUpdate; rolling != nil {
		surge = scaledValue(rolling.MaxSurge, r.desiredReplicas(), true)
	}
	if total >= r.desiredReplicas()+surge {
		return size
	}
	return size + min(r.desiredReplicas()+surge-total, r.desiredReplicas()-size)
}

// scaleDownOld scales down old sets: first their unavailable pods, then as many as maxUnavailable allows.
func (r *rollout) scaleDownOld() bool {
	old := r.activeSets(r.old)
	if len(old) == 0 {
		return false
	}
	minAvailable := r.desiredReplicas() - r.maxUnavailable()
	unavailable := r.replicasOf(r.current) - r.current.Status.AvailableReplicas
	budget := r.totalReplicas(r.all()) - minAvailable - unavailable
	if budget <= 0 {
		return false
	}
	scaledDown := int32(0)
	for _, set := range old {
		if scaledDown == budget {
			break
		}
		unhealthy := r.replicasOf(set) - set.Status.AvailableReplicas
		if unhealthy < 0 {
			return false // its status is older than its spec: counting its available pods could scale down too far
		}
		by := min(budget-scaledDown, unhealthy)
		r.scaleSet(set, r.replicasOf(set)-by)
		scaledDown += by
	}
	excess := -minAvailable + r.current.Status.AvailableReplicas
	for _, set := range old {
		excess += set.Status.AvailableReplicas
	}
	for _, set := range old {
		if by := min(r.replicasOf(set), excess); by > 0 {
			r.scaleSet(set, r.replicasOf(set)-by)
			excess -= by
			scaledDown += by
		}
	}
	return scaledDown > 0
}

// recreate is one step of a rollout that waits until all old pods have terminated before it creates new ones.
func (r *rollout) recreate() {
	scaledDown := false
	for _, set := range r.activeSets(r.old) {
		scaledDown = r.scaleSet(set, 0) || scaledDown
	}
	if scaledDown || r.oldPodsRunning() {
		r.updateRevision()
		r.planStatus(true)
		return
	}
	if !r.ensureCurrentSet() {
		return
	}
	r.scaleSet(r.current, r.desiredReplicas())
	if complete(r.deployment, &r.deployment.Status) {
		r.cleanUpHistory()
	}
	r.planStatus(true)
}

func (r *rollout) oldPodsRunning() bool {
	if slices.ContainsFunc(r.old, func(set *appsv1.ReplicaSet) bool { return set.Status.Replicas > 0 }) {
		return true
	}
	return slices.ContainsFunc(r.old, func(set *appsv1.ReplicaSet) bool { return !all(r.pods[set.UID], podstate.IsTerminal) })
}

func all[T any](elements []T, is func(T) bool) bool {
	return !slices.ContainsFunc(elements, func(element T) bool { return !is(element) })
}

// isScalingEvent reports whether spec.replicas changed since the sets were last scaled.
func (r *rollout) isScalingEvent() bool {
	return slices.ContainsFunc(r.activeSets(r.all()), func(set *appsv1.ReplicaSet) bool {
		desired, ok := annotatedReplicas(set, desiredReplicasAnnotation)
		return ok && desired != r.desiredReplicas()
	})
}

// canScale reports whether scale can handle a scaling event. It cannot for a Recreate deployment with several active sets.
func (r *rollout) canScale() bool {
	return r.deployment.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType || r.activeOrLatest() != nil || r.isSaturated()
}

// scale applies a new number of replicas without progressing the rollout. Each set keeps its proportion.
func (r *rollout) scale() {
	if only := r.activeOrLatest(); only != nil {
		r.scaleSet(only, r.desiredReplicas())
		return
	}
	if r.isSaturated() {
		for _, set := range r.activeSets(r.old) {
			r.scaleSet(set, 0)
		}
		return
	}
	if r.deployment.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		r.scaleProportionally()
	}
}

// activeOrLatest returns the only active set; if there is none, the current set or the newest; nil if there are several.
func (r *rollout) activeOrLatest() *appsv1.ReplicaSet {
	switch active := r.activeSets(r.all()); {
	case len(active) == 1:
		return active[0]
	case len(active) > 1:
		return nil
	case r.current != nil:
		return r.current
	case len(r.old) > 0:
		return r.old[len(r.old)-1]
	}
	return nil
}

// isSaturated reports whether the current set alone has all desired replicas available.
func (r *rollout) isSaturated() bool {
	if r.current == nil {
		return false
	}
	desired, ok := annotatedReplicas(r.current, desiredReplicasAnnotation)
	return ok && desired == r.desiredReplicas() && r.replicasOf(r.current) == r.desiredReplicas() && r.current.Status.AvailableReplicas == r.desiredReplicas()
}

func (r *rollout) scaleProportionally() {
	sets := r.activeSets(r.all())
	allowed := int32(0)
	if r.desiredReplicas() > 0 {
		allowed = r.desiredReplicas() + r.maxSurge()
	}
	change := allowed - r.totalReplicas(sets)
	// Larger sets first; of equal ones, scale up the newer and scale down the older first.
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		age := olderSetFirst(a, b)
		if change > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(r.replicasOf(b), r.replicasOf(a)), age)
	})
	sizes, changed := make([]int32, len(sets)), int32(0)
	for i, set := range sets {
		sizes[i] = r.replicasOf(set)
		if change != changed {
			delta := r.proportion(set)
			if change > 0 {
				delta = min(delta, change-changed)
			} else {
				delta = max(delta, change-changed)
			}
			sizes[i] += delta
			changed += delta
		}
	}
	if len(sets) > 0 && change != 0 {
		sizes[0] = max(0, sizes[0]+change-changed) // the largest set gets the rounding remainder
	}
	for i, set := range sets {
		if !r.scaleSet(set, sizes[i]) {
			r.annotateReplicas(r.mutableCopy(set))
		}
	}
}

// proportion is the number of replicas to add to a set so that it keeps its proportion of all pods.
func (r *rollout) proportion(set *appsv1.ReplicaSet) int32 {
	if r.desiredReplicas() == 0 {
		return -r.replicasOf(set)
	}
	before, ok := annotatedReplicas(set, maxReplicasAnnotation)
	if !ok || before == 0 {
		if before = r.deployment.Status.Replicas; before == 0 {
			return 0
		}
	}
	scaled := float64(r.replicasOf(set)) * float64(r.desiredReplicas()+r.maxSurge()) / float64(before)
	return int32(math.Round(scaled)) - r.replicasOf(set)
}

// cleanUpHistory deletes the oldest sets beyond the history limit that are scaled to zero and have no pods.
func (r *rollout) cleanUpHistory() {
	limit := r.deployment.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return
	}
	alive := filter(r.old, func(set *appsv1.ReplicaSet) bool { return set.DeletionTimestamp == nil })
	slices.SortStableFunc(alive, func(a, b *appsv1.ReplicaSet) int {
		revisionA, okA := revisionOf(a)
		revisionB, okB := revisionOf(b)
		if !okA || !okB {
			return olderSetFirst(a, b)
		}
		return cmp.Or(cmp.Compare(revisionA, revisionB), olderSetFirst(a, b))
	})
	var deletes []controller.Write
	for i := range len(alive) - int(*limit) {
		if set := alive[i]; set.Status.Replicas == 0 && ptr.Deref(set.Spec.Replicas, 1) == 0 && set.Generation <= set.Status.ObservedGeneration {
			deletes = append(deletes, controller.NewDelete(set))
		}
	}
	r.plan.AddStep(deletes...)
}

// rollbackTo parses the annotation that requests a rollback; zero means the previous revision.
func rollbackTo(d *appsv1.Deployment) (revision int64, wanted bool) {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return revision, err == nil
}

// rollback replaces the deployment's template by that of an older revision.
func (r *rollout) rollback(revision int64) {
	if !r.ensureCurrentSet() {
		return
	}
	d := r.deployment.DeepCopy()
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	updateWithEvent := func(eventType, reason, message string) {
		r.plan.AddStep(controller.NewUpdate(d).OnSuccess(controller.Event{Object: r.deployment, Type: eventType, Reason: reason, Message: message}))
	}
	sets := r.all()
	for i, set := range sets {
		sets[i] = r.effective(set) // this sync may have made the current set the newest revision
	}
	if revision == 0 {
		if revision = previousRevision(sets); revision == 0 {
			updateWithEvent(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
			return
		}
	}
	for _, set := range sets {
		if found, ok := revisionOf(set); !ok || found != revision {
			continue
		}
		if sameTemplate(&d.Spec.Template, &set.Spec.Template) {
			updateWithEvent(corev1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged",
				fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name))
			return
		}
		d.Spec.Template = *set.Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		maps.DeleteFunc(d.Annotations, func(key, _ string) bool { return !isControllerAnnotation(key) })
		for key, value := range set.Annotations {
			if !isControllerAnnotation(key) {
				metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value)
			}
		}
		updateWithEvent(corev1.EventTypeNormal, "DeploymentRollback", fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, revision))
		return
	}
	updateWithEvent(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
}
