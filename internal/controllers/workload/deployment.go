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

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

var deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Deployment moves pods from one template to the next, through a ReplicaSet for each.
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
	// When the last pod of a set goes, a deployment that recreates may go on.
	gone := func(pod *corev1.Pod) {
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
	ended := func(old, pod *corev1.Pod) {
		if podstate.IsTerminal(pod) && !podstate.IsTerminal(old) {
			gone(pod)
		}
	}
	if err := client.InformerFor[*corev1.Pod](s.Informers).AddEventHandler(nil, ended, gone); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return controller.NewSyncer(s, c), nil
}

// deploymentView is what decides about one deployment.
type deploymentView struct {
	deployment *appsv1.Deployment
	sets       []*appsv1.ReplicaSet // its own and the orphans of its namespace
	// namesake has the name the next set will be given, whoever it belongs to.
	namesake *appsv1.ReplicaSet
	// pods of the sets, for deployments that recreate.
	pods map[types.UID][]*corev1.Pod
	now  time.Time
}

// Observe gathers the deployment and its sets.
func (c *deployments) Observe(key controller.Key) (deploymentView, bool) {
	d, ok := c.deployments.Get(key.Namespace, key.Name)
	if !ok {
		return deploymentView{}, false
	}
	v := deploymentView{deployment: d, sets: c.sets.Claimable(d), now: time.Now()}
	v.namesake, _ = c.sets.Get(d.Namespace, setName(d.Name, templateHash(&d.Spec.Template, d.Status.CollisionCount)))
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
		return plan // validation keeps such selectors out
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
	r := newRollout(v, &plan, controller.Claim(&plan, d, deploymentKind, matches, v.sets))
	switch to, wanted := rollbackTo(d); {
	case d.DeletionTimestamp != nil:
		r.noteRevision()
		r.report(false)
	case d.Spec.Paused:
		r.notePause()
		r.noteRevision()
		r.scale()
		if !wanted {
			r.cleanUp()
		}
		r.report(false)
	case wanted:
		r.notePause()
		r.rollback(to)
	case r.isScaled() && r.canScale():
		r.notePause()
		r.noteRevision()
		r.scale()
		r.report(false)
	default:
		r.notePause()
		if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			r.recreate()
		} else {
			r.roll()
		}
	}
	plan.AddStep(r.updates()...)
	return plan
}

// rollout is a deployment and its sets while one step is decided. Sets are changed in copies; updates turns them into writes.
type rollout struct {
	deploymentView
	plan    *controller.Plan
	current *appsv1.ReplicaSet   // the set of the deployment's template, nil before it is created
	old     []*appsv1.ReplicaSet // all others, the oldest first
	changed map[types.UID]*appsv1.ReplicaSet
	// What the deployment is going to say of itself.
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
		// In rare cases two sets have the template; the older one counts.
		if r.current == nil && sameTemplate(&set.Spec.Template, &v.deployment.Spec.Template) {
			r.current = set
		} else {
			r.old = append(r.old, set)
		}
	}
	if n := v.namesake; r.current == nil && n != nil && metav1.IsControlledBy(n, v.deployment) && sameTemplate(&n.Spec.Template, &v.deployment.Spec.Template) {
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

func (r *rollout) want() int32 { return orOne(r.deployment.Spec.Replicas) }

// decided is a set with what this step has decided.
func (r *rollout) decided(set *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	if c := r.changed[set.UID]; c != nil {
		return c
	}
	return set
}

// size is what a set is scaled to, with what this step has decided.
func (r *rollout) size(set *appsv1.ReplicaSet) int32 { return orOne(r.decided(set).Spec.Replicas) }

func (r *rollout) total(sets []*appsv1.ReplicaSet) (n int32) {
	for _, set := range sets {
		n += r.size(set)
	}
	return n
}

// active are the sets that have, or ought to have, pods.
func (r *rollout) active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return filter(sets, func(set *appsv1.ReplicaSet) bool { return r.size(set) > 0 })
}

// edit returns the copy of a set that is going to be written.
func (r *rollout) edit(set *appsv1.ReplicaSet) *appsv1.ReplicaSet {
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

// resize scales a set. It says whether that changes its size.
func (r *rollout) resize(set *appsv1.ReplicaSet, size int32) bool {
	if r.size(set) == size {
		return false
	}
	c := r.edit(set)
	c.Spec.Replicas = &size
	r.noteReplicas(c)
	return true
}

// noteReplicas writes into a set for which size of deployment it was scaled.
func (r *rollout) noteReplicas(set *appsv1.ReplicaSet) {
	set.Annotations[desiredReplicasAnnotation] = strconv.Itoa(int(r.want()))
	set.Annotations[maxReplicasAnnotation] = strconv.Itoa(int(r.want() + r.surge()))
}

// updates turns the changed sets into writes, the oldest set first.
func (r *rollout) updates() (writes []controller.Write) {
	for _, set := range r.all() {
		c := r.changed[set.UID]
		if c == nil || apiequality.Semantic.DeepEqual(set, c) {
			continue
		}
		write := controller.Updating(c)
		if from, to := orOne(set.Spec.Replicas), orOne(c.Spec.Replicas); from != to {
			write = write.OnSuccess(r.scaled(set.Name, from, to))
		}
		writes = append(writes, write)
	}
	return writes
}

func (r *rollout) scaled(name string, from, to int32) controller.Event {
	direction := "up"
	if to < from {
		direction = "down"
	}
	return controller.Event{Object: r.deployment, Type: corev1.EventTypeNormal, Reason: "ScalingReplicaSet",
		Message: fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, name, from, to)}
}

// surge is how many pods there may be beyond the wanted ones.
func (r *rollout) surge() int32 { surge, _ := fences(r.deployment); return surge }

// leeway is how many of the wanted pods may be unavailable.
func (r *rollout) leeway() int32 {
	if r.want() == 0 {
		return 0
	}
	_, unavailable := fences(r.deployment)
	return min(unavailable, r.want())
}

// fences resolves surge and unavailability. Both zero would never move; then one pod may be missing.
func fences(d *appsv1.Deployment) (surge, unavailable int32) {
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return 0, 0
	}
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		surge = scaledValue(rolling.MaxSurge, orOne(d.Spec.Replicas), true)
		unavailable = scaledValue(rolling.MaxUnavailable, orOne(d.Spec.Replicas), false)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// roll is one step of a rolling update: the new set grows as far as surge allows, else the old ones shrink as far as availability does.
func (r *rollout) roll() {
	if !r.ensureCurrent() {
		return
	}
	defer r.report(true)
	if r.growCurrent() || r.shrinkOld() {
		return
	}
	if complete(r.deployment, &r.deployment.Status) {
		r.cleanUp()
	}
}

func (r *rollout) growCurrent() bool {
	if r.size(r.current) >= r.want() {
		return r.resize(r.current, r.want())
	}
	return r.resize(r.current, r.roomFor(r.size(r.current), r.total(r.all())))
}

// roomFor is the size the current set may have, when it has one and there are total pods.
func (r *rollout) roomFor(size, total int32) int32 {
	if r.deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return r.want()
	}
	surge := int32(0)
	if rolling := r.deployment.Spec.Strategy.RollingUpdate; rolling != nil {
		surge = scaledValue(rolling.MaxSurge, r.want(), true)
	}
	if total >= r.want()+surge {
		return size
	}
	return size + min(r.want()+surge-total, r.want()-size)
}

// shrinkOld scales down old sets: first what is not available anyway, then as much as may be missing.
func (r *rollout) shrinkOld() bool {
	old := r.active(r.old)
	if len(old) == 0 {
		return false
	}
	least := r.want() - r.leeway()
	unavailable := r.size(r.current) - r.current.Status.AvailableReplicas
	budget := r.total(r.all()) - least - unavailable
	if budget <= 0 {
		return false
	}
	shrunk := int32(0)
	for _, set := range old {
		if shrunk == budget {
			break
		}
		sick := r.size(set) - set.Status.AvailableReplicas
		if sick < 0 {
			return false // what it says of itself is older than its size: counting on its pods could take too many
		}
		by := min(budget-shrunk, sick)
		r.resize(set, r.size(set)-by)
		shrunk += by
	}
	spare := -least + r.current.Status.AvailableReplicas
	for _, set := range old {
		spare += set.Status.AvailableReplicas
	}
	for _, set := range old {
		if by := min(r.size(set), spare); by > 0 {
			r.resize(set, r.size(set)-by)
			spare -= by
			shrunk += by
		}
	}
	return shrunk > 0
}

// recreate is one step of a rollout that lets all old pods end before the first new one starts.
func (r *rollout) recreate() {
	shrunk := false
	for _, set := range r.active(r.old) {
		shrunk = r.resize(set, 0) || shrunk
	}
	if shrunk || r.oldPodsRun() {
		r.noteRevision()
		r.report(true)
		return
	}
	if !r.ensureCurrent() {
		return
	}
	r.resize(r.current, r.want())
	if complete(r.deployment, &r.deployment.Status) {
		r.cleanUp()
	}
	r.report(true)
}

func (r *rollout) oldPodsRun() bool {
	if slices.ContainsFunc(r.old, func(set *appsv1.ReplicaSet) bool { return set.Status.Replicas > 0 }) {
		return true
	}
	return slices.ContainsFunc(r.old, func(set *appsv1.ReplicaSet) bool { return !all(r.pods[set.UID], podstate.IsTerminal) })
}

func all[T any](elements []T, is func(T) bool) bool {
	return !slices.ContainsFunc(elements, func(element T) bool { return !is(element) })
}

// isScaled says that the user changed the number of replicas since the sets were last scaled.
func (r *rollout) isScaled() bool {
	return slices.ContainsFunc(r.active(r.all()), func(set *appsv1.ReplicaSet) bool {
		desired, ok := annotatedReplicas(set, desiredReplicasAnnotation)
		return ok && desired != r.want()
	})
}

// canScale says whether scale knows what to do. With several sets of a deployment that recreates, changed in the middle of a rollout, only
// the rollout itself leads on.
func (r *rollout) canScale() bool {
	return r.deployment.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType || r.activeOrLatest() != nil || r.isSaturated()
}

// scale brings the sets to a new number of replicas without moving the rollout: each set gets its share.
func (r *rollout) scale() {
	if only := r.activeOrLatest(); only != nil {
		r.resize(only, r.want())
		return
	}
	if r.isSaturated() {
		for _, set := range r.active(r.old) {
			r.resize(set, 0)
		}
		return
	}
	if r.deployment.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		r.scaleProportionally()
	}
}

// activeOrLatest is the one set that has pods; if none has, the current set or the youngest; nil if several have.
func (r *rollout) activeOrLatest() *appsv1.ReplicaSet {
	switch active := r.active(r.all()); {
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

// isSaturated says that the current set alone has all the pods the deployment wants, available.
func (r *rollout) isSaturated() bool {
	if r.current == nil {
		return false
	}
	desired, ok := annotatedReplicas(r.current, desiredReplicasAnnotation)
	return ok && desired == r.want() && r.size(r.current) == r.want() && r.current.Status.AvailableReplicas == r.want()
}

func (r *rollout) scaleProportionally() {
	sets := r.active(r.all())
	allowed := int32(0)
	if r.want() > 0 {
		allowed = r.want() + r.surge()
	}
	change := allowed - r.total(sets)
	// Larger sets first; among equals, grow the younger and shrink the older.
	slices.SortFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		age := olderSetFirst(a, b)
		if change > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(r.size(b), r.size(a)), age)
	})
	sizes, changed := make([]int32, len(sets)), int32(0)
	for i, set := range sets {
		sizes[i] = r.size(set)
		if change != changed {
			share := r.share(set)
			if change > 0 {
				share = min(share, change-changed)
			} else {
				share = max(share, change-changed)
			}
			sizes[i] += share
			changed += share
		}
	}
	if len(sets) > 0 && change != 0 {
		sizes[0] = max(0, sizes[0]+change-changed) // what rounding left over goes to the largest
	}
	for i, set := range sets {
		if !r.resize(set, sizes[i]) {
			r.noteReplicas(r.edit(set))
		}
	}
}

// share is by how much a set grows, to keep its part of all pods.
func (r *rollout) share(set *appsv1.ReplicaSet) int32 {
	if r.want() == 0 {
		return -r.size(set)
	}
	before, ok := annotatedReplicas(set, maxReplicasAnnotation)
	if !ok || before == 0 {
		if before = r.deployment.Status.Replicas; before == 0 {
			return 0
		}
	}
	part := float64(r.size(set)) * float64(r.want()+r.surge()) / float64(before)
	return int32(math.Round(part)) - r.size(set)
}

// cleanUp deletes the oldest sets beyond the history limit, if nothing is left of them.
func (r *rollout) cleanUp() {
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
		if set := alive[i]; set.Status.Replicas == 0 && orOne(set.Spec.Replicas) == 0 && set.Generation <= set.Status.ObservedGeneration {
			deletes = append(deletes, controller.Deleting(set))
		}
	}
	r.plan.AddStep(deletes...)
}

// rollbackTo reads the annotation that asks for an older revision; zero means the one before.
func rollbackTo(d *appsv1.Deployment) (revision int64, wanted bool) {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return revision, err == nil
}

// rollback gives the deployment the template of an older revision.
func (r *rollout) rollback(revision int64) {
	if !r.ensureCurrent() {
		return
	}
	d := r.deployment.DeepCopy()
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	tell := func(eventType, reason, message string) {
		r.plan.AddStep(controller.Updating(d).OnSuccess(controller.Event{Object: r.deployment, Type: eventType, Reason: reason, Message: message}))
	}
	sets := r.all()
	for i, set := range sets {
		sets[i] = r.decided(set) // the current set may have become the newest revision in this very step
	}
	if revision == 0 {
		if revision = lastRevision(sets); revision == 0 {
			tell(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
			return
		}
	}
	for _, set := range sets {
		if found, ok := revisionOf(set); !ok || found != revision {
			continue
		}
		if sameTemplate(&d.Spec.Template, &set.Spec.Template) {
			tell(corev1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged",
				fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name))
			return
		}
		d.Spec.Template = *set.Spec.Template.DeepCopy()
		delete(d.Spec.Template.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		maps.DeleteFunc(d.Annotations, func(key, _ string) bool { return !isOurs(key) })
		for key, value := range set.Annotations {
			if !isOurs(key) {
				metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value)
			}
		}
		tell(corev1.EventTypeNormal, "DeploymentRollback", fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, revision))
		return
	}
	tell(corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
}
