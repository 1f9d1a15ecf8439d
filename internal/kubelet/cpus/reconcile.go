package cpus

import (
	"context"
	"time"

	"k8s.io/utils/cpuset"
)

// Run keeps the CPUs that running containers may use equal to those they are assigned, until ctx is done. It does so when the assignments
// change, and periodically.
func (c *CPUs) Run(ctx context.Context) error {
	if c.policy == nil {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(c.ReconcilePeriod)
	defer ticker.Stop()
	for {
		c.reconcile(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
		case <-ticker.C:
		}
	}
}

func (c *CPUs) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Applied records the CPUs that a container was created with.
func (c *CPUs) Applied(created Container, cpus cpuset.CPUSet) {
	if c.policy == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied[created.ID] = cpus
	if !c.of(created.UID, created.Name).Equals(cpus) {
		c.wake()
	}
}

// pendingUpdate is a running container whose CPUs differ from those it is assigned.
type pendingUpdate struct {
	Container
	cpus cpuset.CPUSet
}

// reconcile updates the containers whose CPUs differ. What fails is retried in the next period.
func (c *CPUs) reconcile(ctx context.Context) {
	running, err := c.Running(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.Log.Warn("failed to list containers", "error", err)
		}
		return
	}
	for _, u := range c.pendingUpdates(running) {
		if err := c.Update(ctx, u.ID, u.cpus); err != nil {
			c.Log.Warn("failed to update the CPUs of a container", "podUID", u.UID, "container", u.Name, "cpus", u.cpus.String(), "error", err)
			continue
		}
		c.mu.Lock()
		c.applied[u.ID] = u.cpus
		c.mu.Unlock()
	}
}

// pendingUpdates returns the updates that running containers need, those with shared CPUs first: they leave CPUs that have become exclusive.
func (c *CPUs) pendingUpdates(running []Container) []pendingUpdate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseRemoved()
	var shared, exclusive []pendingUpdate
	isRunning := make(map[string]bool, len(running))
	for _, r := range running {
		isRunning[r.ID] = true
		cpus := c.of(r.UID, r.Name)
		if applied, ok := c.applied[r.ID]; ok && applied.Equals(cpus) || cpus.IsEmpty() {
			continue
		}
		if _, has := c.state.exclusive[r.UID][r.Name]; has {
			exclusive = append(exclusive, pendingUpdate{r, cpus})
			continue
		}
		shared = append(shared, pendingUpdate{r, cpus})
	}
	for id := range c.applied {
		if !isRunning[id] {
			delete(c.applied, id)
		}
	}
	return append(shared, exclusive...)
}
