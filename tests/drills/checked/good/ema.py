"""An average of the weights, kept by torch's AveragedModel and named in run.state."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm_like import progress

import outlast

run = outlast.join()
torch.manual_seed(2)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
model = run.replicate(net)
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5)
state = run.state(model=model, ema=ema, optimizer=optimizer)
for step in progress(run.steps(state, until=500)):
    with step:
        x = torch.randn(8, 6)
        loss = model(x).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(net)
