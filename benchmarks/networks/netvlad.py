import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, K, F_, G):
        super().__init__()
        self.F_ = F_
        self.K = K
        s = 1 / math.sqrt(F_)
        self.clusters = nn.Parameter(s * torch.randn(F_, K + G))
        self.bn = nn.BatchNorm1d(K + G)
        self.clusters2 = nn.Parameter(s * torch.randn(1, F_, K))

    def forward(self, x, mask=None):
        M = x.size()[1]
        x = x.view(-1, self.F_)
        if x.device != self.clusters.device:
            raise ValueError("device")
        a = self.bn(torch.matmul(x, self.clusters))
        a = F.softmax(a, dim=1)[:, : self.K]
        a = a.view(-1, M, self.K)
        a_sum = torch.sum(a, dim=1, keepdim=True)
        b = a_sum * self.clusters2
        a = a.transpose(1, 2)
        x = x.view(-1, M, self.F_)
        v = torch.matmul(a, x).transpose(1, 2) - b
        v = F.normalize(v)
        v = v.reshape(-1, self.K * self.F_)
        return F.normalize(v)


def get_inputs():
    return [torch.rand(2048, 100, 512)]


def get_init_inputs():
    return [32, 512, 16]
