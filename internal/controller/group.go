package controller

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"skiff/internal/client"
)

// Group are controllers that run together, with informers of their own and without leader election: those inside every API server.
type Group struct {
	informers *client.Informers
	loops     []*Loop
}

// NewGroup returns the controllers of some definitions. It starts nothing.
func NewGroup(c *client.Client, log *slog.Logger, definitions ...Definition) (*Group, error) {
	g := &Group{informers: client.NewInformers(c)}
	env := Environment{Client: c, Informers: g.informers, Events: client.NewEventBroadcaster(c).WithLog(log), Log: log}
	for _, d := range definitions {
		loop, err := NewLoop(d, env)
		if err != nil {
			return nil, err
		}
		g.loops = append(g.loops, loop)
	}
	return g, nil
}

// Run runs the controllers until ctx is done, from the time their informers have all objects.
func (g *Group) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.informers.Run(ctx) })
	group.Go(func() error {
		if err := g.informers.WaitForSync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, loop := range g.loops {
			group.Go(func() error { return loop.Run(ctx) })
		}
		return nil
	})
	return group.Wait()
}
